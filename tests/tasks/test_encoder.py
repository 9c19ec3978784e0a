import pytest

from tests import tokenizer_files

PROSE = """

The dog runs. The dogs run.
Running.


The dog.
\t
Dogs."""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture
def texts(tmp_path, vocabulary):
    """A function that gives the texts of a task's examples."""
    from t5x_lite.data.config import TaskArguments
    from tasks import encoder

    def read(name, files, *, split="train", length=10):
        for file, content in files.items():
            (tmp_path / file).write_text(content)
        arguments = TaskArguments(
            vocabulary=vocabulary,
            directory=str(tmp_path),
            inputs_length=length,
            targets_length=1,
        )
        task = getattr(encoder, name)(arguments)
        assert set(task.output_features) == {"inputs"}
        dataset = task.get_dataset({"inputs": length}, split, shuffle=False)
        found = [example["inputs"].tolist() for example in dataset.as_numpy_iterator()]
        assert all(row[0] == 2 and row[-1] == 3 and len(row) <= length for row in found)
        return [vocabulary.decode(row) for row in found]

    return read


@pytest.mark.slow
def test_documents_end_at_blank_lines(texts):
    files = {"prose.txt": PROSE, "validation.txt": "Held out.\n\nToo."}
    assert texts("documents", files, length=40) == [
        "the dog runs. the dogs run. running.",
        "the dog.",
        "dogs.",
    ]
    assert texts("documents", {}, split="validation", length=40) == ["held out.", "too."]


def test_lines_are_documents(texts):
    files = {"prose.txt": PROSE, "validation.txt": "Held out."}
    assert texts("lines", files, length=40) == [
        "the dog runs. the dogs run.",
        "running.",
        "the dog.",
        "dogs.",
    ]


def test_a_document_is_cut_at_the_ends_of_sentences(texts):
    files = {"prose.txt": PROSE, "validation.txt": "Held out."}
    assert texts("documents", files, length=10) == [
        "the dog runs.",
        "the dogs run. running.",
        "the dog.",
        "dogs.",
    ]


def test_objects_of_jsonl_are_documents(texts):
    files = {
        "prose.jsonl": '{"text": "The dog.\\n\\nA dog."}\n{"text": "Dogs."}\n',
        "validation.txt": "Held out.",
    }
    for name in ("documents", "lines"):
        assert texts(name, files, length=40) == ["the dog. a dog.", "dogs."]


@pytest.mark.slow
def test_about_every_hundredth_document_is_held_out(texts):
    files = {"prose.txt": "\n\n".join(f"dog {i}\nrun" for i in range(1000))}
    train = texts("documents", files, length=20)
    held_out = texts("documents", {}, split="validation", length=20)
    assert len(train) + len(held_out) == 1000
    assert 2 < len(held_out) < 30
    assert not {*train} & {*held_out}


def test_passages_have_their_titles(texts):
    files = {
        "psgs_w100.tsv": 'id\ttext\ttitle\n1\t"the ""dog"" runs"\tDogs\n2\trun\tA dog\n',
        "others.tsv": "1\tnot read\n",
    }
    assert texts("passages", files, length=40) == ['dogs the " dog " runs', "a dog run"]


def test_a_collection_without_names_or_titles(texts):
    assert texts("passages", {"collection.tsv": "0\tthe dog\n1\tdogs run\n"}, length=40) == [
        "the dog",
        "dogs run",
    ]


def test_about_every_hundredth_passage_is_held_out(texts):
    files = {"a.jsonl": "".join(f'{{"title": "Dog", "text": "run {i}"}}\n' for i in range(1000))}
    train = texts("passages", files, length=20)
    held_out = texts("passages", {}, split="validation", length=20)
    assert len(train) + len(held_out) == 1000
    assert 2 < len(held_out) < 30


def test_a_wrong_line_of_a_collection_is_named(texts):
    with pytest.raises(Exception, match=r"collection\.tsv:2: must have 2 columns, id TAB text"):
        texts("passages", {"collection.tsv": "0\tthe dog\n1\n"}, length=40)
