"""Named data sets in the exact form of their files, with what files of these kinds may hold."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import released_files
from t5x_lite.data.formats.released_files import (
    PAIRS,
    TYDI_LANGUAGES,
    Parallel,
    parallel_splits,
    race_splits,
    read_parallel,
    read_race,
    read_swag,
    read_trivia_documents,
    read_trivia_questions,
    swag_splits,
    trivia_splits,
)

SWAG_HEAD = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
)
SWAG_ROW = '0,lsmdc1,18313,"A, b. She","A, b.",She,gold,"says ""hi"".",turns.,"walks\nslowly.",x,2'


def write(path, content, *, compress=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if compress else content)
    return path


def lines_of(*records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def race(*, questions=("Why?",), article="Text.", answers=("B",), **others):
    options = [["a", "b", "c", "d"]] * len(questions)
    record = {"answers": answers, "options": options, "questions": questions, "article": article}
    return json.dumps({**record, "id": "high1.txt", **others})


def write_race(root, lines):
    """RACE with an article for each line."""
    for split, level in [(s, v) for s in ("train", "dev") for v in ("middle", "high")]:
        for number, line in enumerate(lines[:60]):
            write(root / "RACE" / split / level / f"{number}.txt", race(article=line))


def write_swag(root, lines):
    """SWAG with a situation for each line."""
    rows = [SWAG_HEAD]
    for number, line in enumerate(lines[:120]):
        text = '"' + line.replace('"', '""')[:60] + '"'
        rows.append(f"{number},v,1,{text},{text},She,gold,a,b,c,{text},{number % 4}")
    for name in ("train", "val"):
        write(root / f"{name}.csv", "\n".join(rows))


def trivia(number, *, answer="Emma", pages=(), results=(), **others):
    aliases = {"Aliases": [answer, f"{answer}."], "NormalizedAliases": [answer.lower()]}
    record = {
        "Question": f" Who is {number}? ",
        "QuestionId": f"tc_{number}",
        "Answer": {"Value": answer, "Type": "WikipediaEntity", **aliases},
        "EntityPages": [{"Filename": name, "Title": name.split(".")[0]} for name in pages],
        "SearchResults": [{"Filename": name, "Title": "Web", "Rank": 0} for name in results],
    }
    return {**record, **others}


def trivia_file(*records):
    return json.dumps({"Data": records, "Domain": "Web", "VerifiedEval": False, "Version": 1.0})


def write_trivia(root, lines):
    """TriviaQA with a page for each line."""
    records = []
    for number, line in enumerate(lines[:60]):
        write(root / "evidence" / "wikipedia" / f"p{number}.txt", f"Emma. {line}")
        records.append(trivia(number, pages=[f"p{number}.txt"]))
    for name in ("wikipedia-train", "wikipedia-dev", "web-train", "web-dev"):
        write(root / "qa" / f"{name}.json", trivia_file(*records))


def squad(paragraphs):
    """SQuAD's JSON of paragraphs with the numbers of their questions; an odd one has no answer."""
    items = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{number}",
                    "question": f"What is {number}?",
                    "answers": [] if number % 2 else [{"text": context[:1], "answer_start": 0}],
                    "is_impossible": bool(number % 2),
                }
                for number in numbers
            ],
        }
        for context, numbers in paragraphs
    ]
    return json.dumps({"data": [{"title": "T_1", "paragraphs": items}], "version": "1"})


def pubmed(*names, **others):
    record = {"QUESTION": "Does it?", "CONTEXTS": ["It was. ", "It is."], "LONG_ANSWER": "Yes."}
    return json.dumps({name: {**record, **others} for name in names})


def passage(name, text="Text", title="Title"):
    return {"docid": name, "title": title, "text": text}


def tevatron(number, positives, negatives=()):
    return {
        "query_id": str(number),
        "query": f"what {number}",
        "positive_passages": list(positives),
        "negative_passages": list(negatives),
    }


def write_tydi(root, lines):
    """A language of Mr. TyDi as released, with a passage for each line."""
    folder = root / "mrtydi-v1.1-swahili"
    rows = [{"id": f"{i}#0", "contents": f"T\n\n{line}"} for i, line in enumerate(lines)]
    write(folder / "collection" / "docs.jsonl.gz", lines_of(*rows), compress=True)
    for split in ("train", "dev", "test"):
        numbers = range(len(lines))
        topics = "".join(f"{i}\t{line[:30]}\n" for i, line in enumerate(lines))
        write(folder / f"topic.{split}.tsv", topics)
        write(folder / f"qrels.{split}.txt", "".join(f"{i} Q0 {i}#0 1\n" for i in numbers))


def write_pairs(root, lines):
    """Files of `tasks.pairs:squad`, `pubmedqa`, `tevatron` and `mrtydi`, of the same lines."""
    content = squad([(line, (4 * i, 4 * i + 2)) for i, line in enumerate(lines)])
    for split in ("train", "dev"):
        write(root / f"{split}-v2.0.json", content)
        rows = [tevatron(i, [passage(f"p{i}", line)]) for i, line in enumerate(lines)]
        write(root / f"{split}.jsonl", lines_of(*rows))
    abstracts = {str(i): {"QUESTION": "Is it?", "CONTEXTS": [x]} for i, x in enumerate(lines)}
    write(root / "ori_pqal.json", json.dumps(abstracts))
    write_tydi(root, lines)


def write_parallel(root, lines):
    """Lines with scores, as CCMatrix has them."""
    rows = [f"1.{i % 10}\t{line[:40]}\t{line[:30]}" for i, line in enumerate(lines)]
    for split in ("train", "validation"):
        write(root / f"{split}.tsv", "\n".join(rows))


def read(name, directory, split="train"):
    return [
        (one.query, list(one.positives), list(one.negatives), one.positive_ids)
        for one in PAIRS[name].read(str(directory), split)
    ]


# RACE.


def test_race_as_released(tmp_path):
    root = tmp_path / "RACE"
    text = race(questions=["Why?", "It _ ."], answers=["A", "D"], article="A\u2028b\r\n\n“c”")
    for name in ("10.txt", "2.txt"):
        write(root / "train" / "high" / name, b"\xef\xbb\xbf" + text.encode())
    write(root / "train" / "middle" / "1.txt.gz", race() + "\n", compress=True)
    splits = race_splits(str(tmp_path))
    assert list(splits) == ["train"]
    found = list(read_race(splits["train"]))
    assert [one["id"] for one in found] == ["middle/1.txt.gz:0"] + [
        f"high/{name}:{number}" for name in ("2.txt", "10.txt") for number in range(2)
    ]
    assert [one["label"] for one in found] == [1, 0, 3, 0, 3]
    assert found[1]["article"] == "A\u2028b\r\n\n“c”"
    assert found[2]["choices"] == ["a", "b", "c", "d"]
    assert len(race_splits(str(root), ["middle"])["train"]) == 1


def test_race_of_the_hub(tmp_path):
    row = {"article": "A", "question": "Why?", "options": ["a", "b", "c", "d"], "answer": "C"}
    rows = [{**row, "example_id": f"{level}{n}.txt"} for n, level in enumerate(["high", "middle"])]
    write(tmp_path / "train.jsonl", lines_of(*rows))
    table = race_splits(str(tmp_path))["train"]
    assert [one["label"] for one in read_race(table)] == [2, 2]
    (one,) = read_race(table, ["middle"])
    assert one["id"] == "middle1.txt:1"
    write(tmp_path / "train.jsonl", lines_of({**row, "example_id": "0"}))
    with pytest.raises(InputError, match='"example_id" must begin with high or middle'):
        list(read_race(table, ["middle"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "1.txt: not JSON that can be read"),
        ("[]", "must be a JSON object with an article"),
        ('{"article": "x"}', 'must have "article", and the lists "questions"'),
        (race(answers=["B", "A"]), "1 questions, 1 lists of options and 2 answers"),
        (race(answers=["E"]), "1.txt: question 0: column answer is 'E', but must be one of A, B"),
        (race(options=[["a", "b"]]), "question 0: a question must have 4 options, got 2"),
        (race(options=["abcd"]), "question 0: the question and all its options must be"),
        (race(questions=[]), "0 questions, 0 lists of options and 1 answers"),
        (
            race(questions=[], options=[], answers=[]),
            "has no question of the RACE level middle or high",
        ),
        ('{"article": "\ud800"}'.encode("utf-8", "surrogatepass"), "not UTF-8"),
    ],
)
def test_race_that_is_wrong(tmp_path, content, message):
    write(tmp_path / "train" / "high" / "1.txt", content)
    with pytest.raises(InputError, match=message):
        list(read_race(race_splits(str(tmp_path))["train"]))


@pytest.mark.parametrize("directory", ["", "elsewhere"])
def test_a_directory_without_race_or_swag(directory):
    with pytest.raises(InputError, match="has neither RACE's train"):
        race_splits(directory)
    with pytest.raises(InputError, match=r"has neither SWAG's train\.csv"):
        swag_splits(directory)


# SWAG.


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("begin", ["", "\ufeff"])
def test_swag_of_its_authors(tmp_path, begin, end):
    row = SWAG_ROW.replace("x,2", "x\u2028y,2")
    content = begin + end.join([SWAG_HEAD, row, "", row.replace(",2", ",0")])  # no line end
    write(tmp_path / "train.csv.gz", content, compress=True)
    write(tmp_path / "train_full.csv", ",video-id\n")
    cut = [SWAG_HEAD.removesuffix(",label"), row.removesuffix(",2")]
    write(tmp_path / "test.csv", "\n".join(cut) + "\n")
    splits = swag_splits(str(tmp_path))
    first, second = read_swag(splits["train"], "train")
    assert first == {
        "sent1": "A, b.",
        "sent2": "She",
        "choices": ['says "hi".', "turns.", "walks\nslowly.", "x\u2028y"],
        "label": 2,
        "id": "0",
    }
    assert (second["label"], second["id"]) == (0, "1")
    assert [one["label"] for one in read_swag(splits["test"], "test")] == [-1]


def test_swag_of_the_hub(tmp_path):
    pa, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))

    row = {"sent1": "A.", "sent2": "B", **{f"ending{i}": str(i) for i in range(4)}, "label": 3}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "train-00000-of-00001.parquet")
    (one,) = read_swag(swag_splits(str(tmp_path))["train"], "train")
    assert (one["label"], one["choices"]) == (3, ["0", "1", "2", "3"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"train\.csv: the file is empty"),
        (SWAG_HEAD, r"train\.csv: no question"),
        (SWAG_HEAD.replace("ending2,", "") + "\n", "header lacks ending2"),
        (SWAG_HEAD.replace(",label", ""), "header lacks label"),
        (
            f"{SWAG_HEAD}\n" + SWAG_ROW.replace(",2", ",4"),
            r"train\.csv:2: column label is '4', but must be one of",
        ),
        (
            f"{SWAG_HEAD}\n" + SWAG_ROW.replace("x,2", 'x"y,2'),
            "an unquoted entry contains a quotation mark",
        ),
        (f"{SWAG_HEAD}\n1,2\n", "2 columns, but the header has 12"),
    ],
)
def test_swag_that_is_wrong(tmp_path, content, message):
    write(tmp_path / "train.csv", content)
    with pytest.raises(InputError, match=message):
        list(read_swag(swag_splits(str(tmp_path))["train"], "train"))


# TriviaQA.


def test_trivia_qa_with_documents(tmp_path):
    write(tmp_path / "evidence/wikipedia/A_b.txt", "\ufeffBy  İ EMMA, " + "word " * 900)
    write(tmp_path / "evidence/web/3/3_1.txt", "Nothing.")
    records = [
        trivia(1, pages=["A_b.txt"], results=["3/3_1.txt"]),
        trivia(2, results=["3/3_1.txt"]),
    ]
    write(tmp_path / "qa" / "web-train.json.gz", trivia_file(*records), compress=True)
    ((file,),) = trivia_splits(str(tmp_path), ["web"]).values()
    (one,) = read_trivia_documents(file, "train")
    assert one["id"] == "tc_1--A_b.txt"
    assert one["question"] == "Who is 1?"
    assert len(one["context"].split()) == released_files.WORDS_OF_DOCUMENT
    assert one["answers"] == {"text": ["EMMA", "Emma", "Emma."], "answer_start": [6, -1, -1]}
    assert one["context"][6:10] == "EMMA"
    found = list(read_trivia_documents(file, "validation"))
    assert [each["id"] for each in found] == ["tc_1--A_b.txt", "tc_1--3/3_1.txt", "tc_2--3/3_1.txt"]
    assert found[1]["answers"] == {"text": ["Emma", "Emma."], "answer_start": [-1, -1]}


def test_trivia_qa_alone_and_without_answers(tmp_path):
    write(tmp_path / "triviaqa-unfiltered/unfiltered-web-dev.json", trivia_file(trivia(1)))
    hidden = trivia(2)
    del hidden["Answer"]
    name = "triviaqa-unfiltered/unfiltered-web-test-without-answers.json"
    write(tmp_path / name, trivia_file(hidden))
    splits = trivia_splits(str(tmp_path), ["unfiltered-web", "web"])
    assert list(splits) == ["validation", "test"]
    (one,) = read_trivia_questions(splits["validation"][0])
    assert one["answers"]["text"] == ["Emma", "Emma."]
    (one,) = read_trivia_questions(splits["test"][0])
    assert one["answers"] == {"text": [], "answer_start": []}


def test_trivia_qa_as_pairs(tmp_path):
    for name, text in {"a": "It is Emma.", "b": "No.", "c": "It is emma, too."}.items():
        write(tmp_path / "evidence" / "wikipedia" / f"{name}.txt", text)
    records = [trivia(1, pages=["a.txt", "b.txt", "c.txt", "a.txt"]), trivia(2, pages=["b.txt"])]
    write(tmp_path / "qa" / "wikipedia-train.json", trivia_file(*records))
    assert PAIRS["triviaqa"].splits(str(tmp_path)) == ("train",)
    assert read("triviaqa", tmp_path) == [
        ("Who is 1?", ["a It is Emma.", "c It is emma, too."], ["b No."], ["a.txt", "c.txt"])
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ("{}", "the JSON object must have 'Data'"),
        ('{"Data": 3}', "'Data' must be an array of objects"),
        (trivia_file(), "no question"),
        (trivia_file(trivia(1))[:-1], "wikipedia-train.json: after 'Version'"),
        (trivia_file(trivia(1))[:-5], "wikipedia-train.json: 'Version': not JSON"),
        (trivia_file(trivia(1))[:60], "wikipedia-train.json: question 1: not JSON"),
        (trivia_file({"Question": "x"}), 'question 1: must have "QuestionId"'),
        (trivia_file(trivia(1, Answer={"Value": "x"})), '"Answer" must have "Value"'),
        (
            trivia_file(trivia(1, pages=["../x"])),
            '"Filename" must be a file in the folder evidence',
        ),
        (
            trivia_file(trivia(1, pages=["x.txt"])),
            r"with an answer; 1 documents are missing, .*x\.txt",
        ),
        (trivia_file(trivia(1)), "no question has a document with an answer"),
    ],
)
def test_trivia_qa_that_is_wrong(tmp_path, content, message):
    (tmp_path / "evidence").mkdir()
    write(tmp_path / "qa" / "wikipedia-train.json", content)
    with pytest.raises(InputError, match=message):
        read("triviaqa", tmp_path)


def test_a_document_that_is_missing_is_skipped_with_a_warning(tmp_path, caplog):
    write(tmp_path / "evidence" / "wikipedia" / "a.txt", "Emma.")
    write(tmp_path / "qa" / "web-train.json", trivia_file(trivia(1, pages=["x.txt", "a.txt"])))
    ((file,),) = trivia_splits(str(tmp_path), ["web"]).values()
    assert [one["id"] for one in read_trivia_documents(file, "train")] == ["tc_1--a.txt"]
    assert "1 documents are missing, such as" in caplog.text


def test_trivia_qa_without_evidence(tmp_path):
    write(tmp_path / "wikipedia-train.json", trivia_file(trivia(1, pages=["a.txt"])))
    with pytest.raises(InputError, match=r".*evidence with the documents of TriviaQA is missing"):
        read("triviaqa", tmp_path)


# Pairs.


def test_squad_as_pairs(tmp_path):
    content = squad([("Alpha.", (0, 2, 1)), ("Beta\u2028b.", (4,)), (" Alpha. ", (6,))])
    write(tmp_path / "SQuAD" / "train-v2.0.json", content)
    assert read("squad", tmp_path) == [
        ("What is 0?", ["Alpha."], [], ["0"]),
        ("What is 2?", ["Alpha."], [], ["0"]),
        ("What is 4?", ["Beta\u2028b."], [], ["3"]),
        ("What is 6?", ["Alpha."], [], ["0"]),
    ]
    write(tmp_path / "SQuAD" / "train-v2.0.json", squad([("Alpha.", (1,))]))
    with pytest.raises(InputError, match="no question has an answer in its paragraph"):
        read("squad", tmp_path)


def test_pubmed_qa_as_pairs(tmp_path):
    write(tmp_path / "data" / "ori_pqal.json", b"\xef\xbb\xbf" + pubmed("21645374", "7").encode())
    abstract = "It was. It is. Yes."
    assert read("pubmedqa", tmp_path) == [
        ("Does it?", [abstract], [], ["21645374"]),
        ("Does it?", [abstract], [], ["7"]),
    ]
    assert PAIRS["pubmedqa"].splits(str(tmp_path)) == ("train",)
    for name in ("pqaa_train_set", "pqaa_dev_set"):
        write(tmp_path / "split" / f"{name}.json", pubmed("1", LONG_ANSWER=None))
    assert PAIRS["pubmedqa"].splits(str(tmp_path / "split")) == ("train", "validation")
    assert read("pubmedqa", tmp_path / "split", "validation")[0][1] == ["It was. It is."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must be a JSON object"),
        ("{}", "no question"),
        ('{"7": 3}', "'7': must be a JSON object"),
        (pubmed("7", CONTEXTS="x"), '\'7\': must have "QUESTION", a string, and "CONTEXTS"'),
        (pubmed("7")[:-1], "after '7'"),
    ],
)
def test_pubmed_qa_that_is_wrong(tmp_path, content, message):
    write(tmp_path / "ori_pqal.json", content)
    with pytest.raises(InputError, match=message):
        read("pubmedqa", tmp_path)


def test_tevatron_and_mr_tydi_of_the_hub(tmp_path):
    rows = [
        tevatron(1, [passage("1#0"), passage("1#1", title="")], [passage("2#0", "Other")]),
        tevatron(2, []),
        tevatron(3, [{"docid": 7, "text": "No title\u2028."}]),
    ]
    expected = [
        ("what 1", ["Title Text", "Text"], ["Title Other"], ["1#0", "1#1"]),
        ("what 3", ["No title\u2028."], [], ["7"]),
    ]
    content = "\ufeff" + lines_of(*rows).replace("\n", "\r\n\r\n").rstrip()
    write(tmp_path / "train.jsonl.gz", content, compress=True)
    assert read("tevatron", tmp_path) == expected
    for language in ("thai", "arabic"):
        write(tmp_path / f"mrtydi-v1.1-{language}" / "train.jsonl.gz", content, compress=True)
    assert read("mrtydi", tmp_path) == [*expected, *expected]
    assert PAIRS["mrtydi"].splits(str(tmp_path)) == ("train",)
    rows = [tevatron(1, [{"text": "a"}, {"docid": "b", "text": "b"}])]
    write(tmp_path / "train.jsonl.gz", lines_of(*rows), compress=True)
    assert read("tevatron", tmp_path) == [("what 1", ["a", "b"], [], None)]


def test_mr_tydi_as_released(tmp_path):
    write_tydi(tmp_path, ["first line", "second line"])
    assert read("mrtydi", tmp_path) == [
        ("first line", ["T first line"], [], ["0#0"]),
        ("second line", ["T second line"], [], ["1#0"]),
    ]
    assert PAIRS["mrtydi"].splits(str(tmp_path)) == ("train", "validation")
    assert len(TYDI_LANGUAGES) == 11
    folder = tmp_path / "mrtydi-v1.1-swahili"
    write(folder / "qrels.train.txt", "0 Q0 9#9 1\n")
    with pytest.raises(InputError, match="judged passages"):
        read("mrtydi", tmp_path)
    gz = gzip.compress(b'{"id": "0", "contents": "x"}\n' * 99)
    write(folder / "collection" / "docs.jsonl.gz", gz[:-12])
    with pytest.raises(InputError, match=r"docs\.jsonl\.gz: the file is truncated"):
        read("mrtydi", tmp_path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "x", "positive_passages": [3]}, '"positive_passages" must be a list of objects'),
        ({"query": "x", "positive_passages": "y"}, '"positive_passages" must be a list of objects'),
        ({"positive_passages": []}, 'train.jsonl:1: must have "query"'),
        (tevatron(1, []), "no query has a positive passage"),
    ],
)
def test_tevatron_that_is_wrong(tmp_path, record, message):
    write(tmp_path / "train.jsonl", lines_of(record))
    with pytest.raises(InputError, match=message):
        read("tevatron", tmp_path)


@pytest.mark.parametrize("name", list(PAIRS))
@pytest.mark.parametrize("directory", ["", "elsewhere"])
def test_a_directory_without_pairs(name, directory):
    with pytest.raises(InputError, match=f"data.directory '{directory}' has no "):
        PAIRS[name].splits(directory)


# Parallel lines.


def test_parallel_lines(tmp_path):
    two = write(tmp_path / "a.tsv", '\ufeffein "x\tone\r\n\r\nzwei\u2028\ttwo')
    assert list(read_parallel(str(two))) == [
        Parallel(f"{two}:1", 'ein "x', "one", None),
        Parallel(f"{two}:3", "zwei", "two", None),
    ]
    three = write(tmp_path / "b.tsv.gz", "1.2\tein\tone\n1.05\tzwei\ttwo\n", compress=True)
    assert [one[1:] for one in read_parallel(str(three), min_score=1.1)] == [("ein", "one", 1.2)]
    more = ["ein", "one", "1.25", "1.0", "1.0", "cc", "http://a", "cc", "http://b"]
    nllb = write(tmp_path / "c.tsv", "\t".join(more))
    assert [one[1:] for one in read_parallel(str(nllb))] == [("ein", "one", 1.25)]


@pytest.mark.parametrize(
    ("content", "min_score", "message"),
    [
        ("one", None, r"a\.tsv:1: a line must be source TAB target"),
        ("a\tb\n1\ta\tb\n", None, r"a\.tsv:2: a line must be source TAB target"),
        ("a\tb\tc\n", None, "the score 'a' is not a number"),
        ("nan\tb\tc\n", None, "the score 'nan' is not a number"),
        ("a\tb\n", 1.0, "the line has no score"),
    ],
)
def test_parallel_lines_that_are_wrong(tmp_path, content, min_score, message):
    file = write(tmp_path / "a.tsv", content)
    with pytest.raises(InputError, match=message):
        list(read_parallel(str(file), min_score=min_score))


def test_files_of_parallel_lines(tmp_path):
    write(tmp_path / "train.tsv.gz", "1.2\tein\tone\n1.0\tzwei\ttwo\n", compress=True)
    write(tmp_path / "dev.de.gz", "ein\r\nzwei", compress=True)
    write(tmp_path / "dev.en", "one\n\u2028two\n")
    splits = parallel_splits(str(tmp_path))
    (train,) = splits["train"]
    assert [row.fields for row in train.rows()] == [
        {"source": "ein", "target": "one", "score": 1.2},
        {"source": "zwei", "target": "two", "score": 1.0},
    ]
    (held_out,) = splits["validation"]
    assert [row.fields for row in held_out.rows()] == [
        {"de": "ein", "en": "one"},
        {"de": "zwei", "en": "\u2028two"},
    ]
    write(tmp_path / "dev.en", "one\n")
    with pytest.raises(InputError, match=r"dev\.en ends before line 2, but dev\.de\.gz and"):
        list(held_out.rows())
    with pytest.raises(InputError, match="parallel texts in two files have no scores"):
        parallel_splits(str(tmp_path), 1.1)
    (tmp_path / "dev.en").unlink()
    with pytest.raises(InputError, match=r"must be one \.tsv file, or two .*got dev\.de\.gz"):
        parallel_splits(str(tmp_path))
    (tmp_path / "dev.de.gz").unlink()
    (train,) = parallel_splits(str(tmp_path), 1.1)["train"]
    assert len(list(train.rows())) == 1
    with pytest.raises(InputError, match=r"has no train\.tsv of parallel lines"):
        parallel_splits(str(tmp_path / "none"))
