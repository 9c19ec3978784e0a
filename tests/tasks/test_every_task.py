"""What every task must keep: a saved iterator goes on bit for bit, and equal seeds are equal.

Tasks are found in the source, by what their functions return, and their layouts by their features;
a new module in tasks/ that reads files of its own needs them in `FILES`, and a new task nothing.
Those in `BY_DEFAULT`, one of each layout, are tried by default, the others by `pytest -m
exhaustive`.
"""

import ast
import gzip
import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from t5x_lite import layouts
from t5x_lite.data.config import Data
from tests import tokenizer_files
from tests.batches import assert_equal_batches, take
from tests.data.formats import test_released_files as released
from tests.tasks import benchmark_directory

BY_DEFAULT = {
    "tasks.choices:jsonl",
    "tasks.encoder:documents",
    "tasks.glue:cola",
    "tasks.pairs:jsonl",
    "tasks.squad:squad_v2",
    "tasks.text:language_model",
    "tasks.text:span_corruption",
    "tasks.tokens:conll",
}
OF_CHARACTERS = {"tasks.squad:squad_v2"}
"""Tasks of spans alone, for vocabularies that know the characters of their tokens."""
LENGTHS = {"inputs_length": 96, "targets_length": 128}


def found_tasks() -> list[str]:
    """As "module:function": public functions that return a seqio.Task, and partials of such."""
    found = []
    for path in sorted((Path(__file__).parents[2] / "tasks").glob("*.py")):
        names, makers = [], set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                if ast.unparse(node.returns).strip("'\"") == "seqio.Task":
                    makers.add(node.name)
                    names.append(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made_of = {ast.unparse(part) for part in [node.value.func, *node.value.args[:1]]}
                if made_of & makers:
                    names += [t.id for t in node.targets if isinstance(t, ast.Name)]
        found += [f"tasks.{path.stem}:{name}" for name in names if name[0] != "_"]
    return found


TASKS = found_tasks()


def test_tasks_are_found():
    assert {
        "tasks.c4:c4_v220_span_corruption",
        "tasks.encoder:documents",
        "tasks.encoder:lines",
        "tasks.glue:sst2",
        "tasks.pairs:beir",
        "tasks.pairs:jsonl",
        "tasks.python_docs:module",
        "tasks.text:iid_15_u_u",
        "tasks.text:prefix_lm",
        "tasks.text:span_corruption",
        "tasks.text:span_2_15_u_u",
    } <= set(TASKS)
    assert "tasks.text:source" not in TASKS


def marked(tasks):
    """The tasks as parameters; those that are like another are exhaustive."""
    for task in tasks:
        marks = [] if task in BY_DEFAULT else [pytest.mark.slow, pytest.mark.exhaustive]
        yield pytest.param(task, marks=marks)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("wordpiece")))


def text_files(root, lines):
    (root / "prose.txt").write_text("\n".join(lines))


def documents(root, lines):
    (root / "prose.txt").write_text("\n\n".join(lines))
    rows = (f"{i}\t{line}\n" for i, line in enumerate(lines))
    (root / "collection.tsv").write_text("".join(rows))


def span_lists(root, lines):
    rows = (json.dumps({"spans": [line[:40], line[40:], line]}) for line in lines)
    (root / "spans.jsonl").write_text("\n".join(rows))


def c4_files(root, lines):
    pages = "\n".join(json.dumps({"text": line, "url": "https://a.org"}) for line in lines)
    for split in ("train", "validation"):
        shard = root / f"c4-{split}.00000-of-00001.json.gz"
        shard.write_bytes(gzip.compress(pages.encode()))


def pairs(root, lines):
    """Files that are pairs, texts, BEIR's and MS MARCO's, all of the same lines."""
    rows = [
        json.dumps(
            {"_id": str(i), "title": line[:20], "text": line, "query": line[:40]}
            | {"pos": [line], "neg": lines[:2]}
        )
        for i, line in enumerate(lines)
    ]
    for split in ("train", "dev"):
        asked = (f"{i}\t{line[:40]}\n" for i, line in enumerate(lines))
        (root / f"queries.{split}.tsv").write_text("".join(asked))
        judged = (f"{i}\t0\t{i}\t1\n" for i in range(len(lines)))
        (root / f"qrels.{split}.tsv").write_text("".join(judged))
    judgements = ["query-id\tcorpus-id\tscore", *(f"{i}\t{i}\t1" for i in range(len(lines)))]
    (root / "qrels").mkdir()
    for split in ("train", "dev"):
        (root / "qrels" / f"{split}.tsv").write_text("\n".join(judgements))
    for name in ("corpus", "queries", "validation"):
        (root / f"{name}.jsonl").write_text("\n".join(rows))


def triplets(root, lines):
    rows = (f"{line[:40]}\t{line}\t{lines[0]}\n" for line in lines)
    (root / "triples.train.tsv").write_text("".join(rows))


def inferences(root, lines):
    rows = [
        json.dumps({"gold_label": label, "sentence1": line[:40], "sentence2": f"{line} {label}"})
        for line in lines
        for label in ("entailment", "contradiction")
    ]
    for split in ("train", "dev"):
        (root / f"snli_1.0_{split}.jsonl").write_text("\n".join(rows))


def questions(root, lines):
    rows = [
        {
            "question": line[:40],
            "positive_ctxs": [{"title": "", "text": line}],
            "hard_negative_ctxs": [{"title": line[:9], "text": lines[0]}],
        }
        for line in lines
    ]
    for split in ("train", "dev"):
        (root / f"biencoder-{split}.json").write_text(json.dumps(rows, indent=2))


def languages(root, lines):
    for kind in ("topics", "qrels"):
        (root / "miracl-v1.0-sw" / kind).mkdir(parents=True)
    (root / "miracl-corpus-v1.0-sw").mkdir()
    rows = {
        "topics": "".join(f"{i}\t{line[:40]}\n" for i, line in enumerate(lines)),
        "qrels": "".join(f"{i}\tQ0\t{i}\t1\n{i}\tQ0\t0\t0\n" for i in range(1, len(lines))),
    }
    for kind, content in rows.items():
        for split in ("train", "dev"):
            name = f"{kind}.miracl-v1.0-sw-{split}.tsv"
            (root / "miracl-v1.0-sw" / kind / name).write_text(content)
    passages = (json.dumps({"docid": i, "title": "", "text": x}) for i, x in enumerate(lines))
    (root / "miracl-corpus-v1.0-sw" / "docs-0.jsonl").write_text("\n".join(passages))


def own_files(root, lines):
    rows = [json.dumps({"text": line[:80], "label": f"{i % 2}.0"}) for i, line in enumerate(lines)]
    for split in ("train", "validation"):
        (root / f"{split}.jsonl").write_text("\n".join(rows))


def choices(root, lines):
    rows = [{"question": line[:40], "choices": [line[40:60], "no"], "label": 0} for line in lines]
    for split in ("train", "validation"):
        (root / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def tagged(root, lines):
    for split in ("train", "valid"):
        rows = ["".join(f"{word} {'O' if i else 'I-A'}\n" for i, word in enumerate(line.split()))
                for line in lines]  # fmt: skip
        (root / f"{split}.txt").write_text("\n".join(rows))
        rows = [{"tokens": line.split(), "tags": ["O", *["NN"] * line.count(" ")]}
                for line in map(" ".join, map(str.split, lines))]  # fmt: skip
        (root / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def xnli(root, lines):
    from tests.data.tasks.test_xnli_files import write

    write(root, lines)


FILES = {
    "tasks.choices": choices,
    **dict.fromkeys(
        (f"tasks.choices:race{x}" for x in ("", "_middle", "_high")), released.write_race
    ),
    "tasks.choices:swag": released.write_swag,
    "tasks.c4": c4_files,
    "tasks.encoder": documents,
    "tasks.encoder:jsonl_spans": span_lists,
    "tasks.files": own_files,
    "tasks.files:parallel": released.write_parallel,
    "tasks.pairs": pairs,
    "tasks.pairs:dpr": questions,
    "tasks.pairs:miracl": languages,
    "tasks.pairs:nli": inferences,
    **{
        f"tasks.pairs:{x}": released.write_pairs
        for x in ("squad", "pubmedqa", "mrtydi", "tevatron")
    },
    "tasks.pairs:stsb": benchmark_directory.write,
    "tasks.pairs:triviaqa": released.write_trivia,
    "tasks.pairs:triplets": triplets,
    **{f"tasks.squad:trivia_qa{x}": released.write_trivia for x in ("", "_web", "_closed_book")},
    "tasks.text": text_files,
    "tasks.tokens": tagged,
    "tasks.xnli": xnli,
}
"""What writes the files of a module or of a task; the others read benchmarks."""
OF_FOUR = {name for name in FILES if name.startswith("tasks.choices:")}
"""Tasks of questions with four choices."""
OF_SPANS = {"tasks.encoder:spans", "tasks.encoder:jsonl_spans"}


def options(name):
    """What a task needs in the config."""
    module = name.partition(":")[0]
    if module in ("tasks.pairs", "tasks.choices"):
        return {"pack": False}
    if module != "tasks.files":
        return {}
    from t5x_lite.data.preprocessors import Columns

    if name == "tasks.files:parallel":
        return {"columns": Columns(inputs="{source}", targets="{target}", min_score=1.0)}
    return {"columns": Columns(inputs="{text}", targets="{label}", labels=("0.0", "1.0"))}


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory, english_lines):
    """A function that gives the directory of a module's files."""
    directories = {}

    def directory(name):
        of_module = FILES.get(name.partition(":")[0], benchmark_directory.write)
        write = FILES.get(name, of_module)
        if write not in directories:
            directories[write] = tmp_path_factory.mktemp("every_task")
            write(directories[write], english_lines[:250])
        return str(directories[write])

    return directory


@pytest.fixture
def _small_python_docs(monkeypatch, english_lines):
    module = importlib.import_module("tasks.python_docs")
    corpus = SimpleNamespace(
        documents=lambda directory: [SimpleNamespace(text=line) for line in english_lines[:250]],
        labelled=lambda _: [(line, f"module{i % 5}") for i, line in enumerate(english_lines[:250])],
    )
    monkeypatch.setattr(module, "python_docs", corpus)


def tried_layouts(task, name):
    """The layouts that are tried: that of a model of one part for a task that is meant for it."""
    if "targets" not in task.output_features:
        if "spans" in task.output_features:
            return [layouts.Spans()]
        if "choices" in task.output_features:
            return [layouts.Choices(num=4 if name in OF_FOUR else 2)]
        if "token_labels" in task.output_features:
            return [layouts.Tokens()]
        if "labels" in task.output_features:
            return [layouts.Windows(doc_stride=8)]
        own = "inputs" in task.output_features
        return [layouts.Encoder() if own else layouts.Groups(negatives=1)]
    if "inputs" not in task.output_features:
        return [layouts.LM()]
    prefix = [layouts.PrefixLM()] if task.name == "text_prefix_lm" else []
    return [layouts.Seq2Seq(), *prefix]


@pytest.mark.usefixtures("_small_python_docs")
@pytest.mark.parametrize("name", list(marked(TASKS)))
@pytest.mark.slow
def test_a_saved_iterator_goes_on_and_evaluation_works(name, directory_of, vocabulary, wordpiece):
    from t5x_lite.data import loading

    module = name.partition(":")[0]
    data = {
        "task": name,
        "vocabulary": "",
        "directory": directory_of(name),
        "batch_size": 3,
        "shuffle_buffer": 16,
        **LENGTHS,
        **options(name),
    }
    num = 4 if name in OF_FOUR else 2
    own = {"tasks.pairs": layouts.Groups(), "tasks.choices": layouts.Choices(num=num)}
    first = own.get(module, layouts.Seq2Seq())
    if name in OF_SPANS:
        first, data["pack"] = layouts.Spans(), False
    if name in OF_CHARACTERS:
        vocabulary, first, data["pack"] = wordpiece, layouts.Windows(doc_stride=8), False
    task = loading.load_task(Data(**{"pack": False, **data}, layout=first), vocabulary)
    for layout in tried_layouts(task, name):
        _check(Data(**data, layout=layout), task, vocabulary)


def _check(data, task, vocabulary):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading, reading

    if "train" in task.splits:
        _check_a_saved_iterator(data, vocabulary)
    if "validation" not in task.splits:
        return
    batch = next(data_batches.eval_batches(data, vocabulary, max_batches=1))
    learned = {
        **dict.fromkeys(("encoder", "spans"), "encoder_word_ids"),
        "groups": "passage_segment_ids",
        "tokens": "token_labels",
        **dict.fromkeys(("choices", "windows"), "labels"),
    }
    assert batch[learned.get(data.layout.name, "decoder_loss_weights")].sum() > 0
    postprocess, metrics = loading.task_metrics(task)
    if metrics:
        examples = reading.eval_examples(data, vocabulary, max_examples=3)
        targets = [example.target for example in examples]
        predictions = [
            postprocess(example.targets_text, example=example.raw, is_target=False)
            for example in examples
        ]
        values = [item for metric in metrics for item in metric(targets, predictions).items()]
        assert len({name for name, _ in values}) == len(values) > 0
        assert all(math.isfinite(value) for _, value in values)


def _check_a_saved_iterator(data, vocabulary):
    from t5x_lite.data import batches as data_batches

    batches = data_batches.train_batches(data, vocabulary, seed=7)
    take(batches, 2)
    state = batches.state()
    expected = take(batches, 2)
    again = data_batches.train_batches(data, vocabulary, seed=7)
    again.restore(state)
    assert_equal_batches(take(again, 2), expected)
