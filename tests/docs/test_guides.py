"""Guides whose blocks run: the commands and the code that a page shows, on small files."""

import dataclasses
import functools
import io
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import t5x_lite
from t5x_lite.cli import main
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.tracking import Tracking
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.data.formats.vectors import VectorShards
from t5x_lite.layouts import Groups
from t5x_lite.objectives.m3 import m3
from t5x_lite.train import measuring
from t5x_lite.train.training import train
from tests.docs.commands import ROOT, blocks, command_lines
from tests.encoder_checkpoint import write_checkpoint, write_ranker

SHORT = {"finetune": ["--steps", "4", "--data.batch-size", "4", "--evaluation.period", "2"]}
"""Options that make the runs of a page short."""


def guide(name):
    return blocks(ROOT / "docs" / "guides" / f"{name}.md")


def run(block):
    for args in command_lines(block):
        assert main([*args, *SHORT.get(args[0], [])]) == 0, args


@pytest.mark.slow
def test_unbalanced_classes(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    write_checkpoint(tmp_path / "work", "bert")
    rows = [f"{'abcdefgh'[i % 8]} {'ijk'[i % 3]},{'no' if i % 4 else 'yes'}" for i in range(80)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    caplog.set_level("INFO", logger="t5x_lite")
    run(guide("classes")[0])
    config = json.loads((tmp_path / "work/review_classes/config.json").read_text())
    no, yes = config["objective"]["class_weights"]
    assert 0.6 < no < 0.7 < 1.8 < yes < 2.3
    metrics = json.loads((tmp_path / "work/results/metrics.json").read_text())
    lines = (tmp_path / "work/results/classes.jsonl").read_text().splitlines()
    (classes,) = map(json.loads, lines)
    assert list(classes["classes"]) == ["no", "yes"]
    macro = classes["averages"]["macro average"]["f1"]
    assert metrics["validation/macro_f1"] == pytest.approx(macro)
    assert "<h2>Classes</h2>" in (tmp_path / "work/review_classes/report.html").read_text()
    weights = ["--objective.class-weights", "1", "2", "3"]
    args = command_lines(guide("classes")[0])[0]
    kept = args[: args.index("--workdir")]
    assert main([*kept, "--workdir", "work/other", *weights]) == 2


@pytest.mark.slow
def test_microbatches_that_train_finds(
    tmp_path, monkeypatch, capsys, tiny_vocabulary, english_lines, compile_once
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "work/quickstart/corpus").mkdir(parents=True)
    (tmp_path / "work/quickstart/vocabulary").symlink_to(tiny_vocabulary.parent)
    records = [{"module": f"m{i % 90}", "name": "", "text": x} for i, x in enumerate(english_lines)]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    (tmp_path / "work/quickstart/corpus/documents.jsonl").write_text(lines)
    block = next(b for b in guide("plan") if "--find-batch-size" in b.text)
    (args,) = command_lines(block)
    assert main([*args, "--steps", "1", "--evaluation.max-batches", "1"]) == 0
    saved = json.loads((tmp_path / "work/found/config.json").read_text())
    number = saved["microbatches"]
    assert f"find_batch_size: using {number} microbatches\n" in capsys.readouterr().err


def test_int8_vectors(tmp_path, monkeypatch, compile_once):
    """Two files with the ranges of the first one, and the scores of float queries."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path, "bert").rename("RETRIEVER")
    texts = {"corpus": "abcdefgh", "more": "ijk", "queries": "aek"}
    for name, words in texts.items():
        Path(f"{name}.jsonl").write_text(
            "".join(f'{{"_id": "{x}", "text": "{x}"}}\n' for x in words)
        )
    run(next(b for b in guide("embedding") if "--precision int8" in b.text))
    ranges = np.load("int8.npy.ranges")
    np.testing.assert_array_equal(np.load("more.npy.ranges"), ranges)
    encode = functools.partial(t5x_lite.load("RETRIEVER").encode, normalize=True)
    queries = encode(list("aek"))
    vectors = VectorShards.open(["int8.npy", "more.npy"]).rows(0, 11)
    np.testing.assert_allclose(vectors, encode(list("abcdefghijk")), atol=0.1)
    for query, found in zip(queries, read_run("run.trec"), strict=True):
        scores = [(-one.score, int(one.document)) for one in found.documents]
        expected = sorted((-score, i) for i, score in enumerate(vectors @ query))
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert [np.load(name).dtype for name in ("int8.npy", "more.npy")] == [np.int8, np.int8]


def test_queries_that_fail_or_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, first in (("bm25", "d2"), ("dense", "d1")):
        Path(f"{name}.trec").write_text(f"q1 Q0 {first} 1 2.0 x\nq2 Q0 d3 1 1.0 x\n")
    texts = {"queries": ("q1", "q2"), "corpus": ("d1", "d2", "d3")}
    for name, ids in texts.items():
        lines = [json.dumps({"_id": x, "text": f"text of {x}"}) for x in ids]
        Path(f"{name}.jsonl").write_text("\n".join(lines))
    Path("qrels").mkdir()
    Path("qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n")
    run(next(b for b in guide("evaluate_retrieval") if "--queries queries.jsonl" in b.text))
    lines = Path("results/examples.jsonl").read_text().splitlines()
    failed, better = map(json.loads, lines)
    assert (failed["list"], failed["query"]) == ("failed", "q2")
    assert (better["list"], better["run"], better["text"]) == ("better", "dense", "text of q1")
    assert better["relevant"][0]["ranks"] == {"bm25": None, "dense": 1}
    assert "text of d1" in Path("results/report.html").read_text()


def test_result_files_of_mteb(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("BEIR/scifact")
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"_id": name, "text": "word"}))
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nqueries\tcorpus\t1\n")
    run(next(b for b in guide("data_sets") if "--mteb" in b.text))
    found = json.loads(Path("results/mteb/results/my-org__bm25/v1/SciFact.json").read_text())
    assert found["scores"]["test"][0]["main_score"] == 1.0


@pytest.mark.slow
def test_a_callback_ends_a_run(
    tmp_path, monkeypatch, tiny_experiment, compile_once, caplog, capsys
):
    """The example of the guide: a run that is killed and resumed ends where another one does."""
    caplog.set_level("INFO", logger="t5x_lite")
    code = next(b.text for b in guide("tracking") if "class Plateau" in b.text)
    module = types.ModuleType("my_callbacks")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "my_callbacks", module)
    losses = {1: 3.0, 2: 2.0, 3: 2.5, 4: 2.25, 5: 1.0}
    monkeypatch.setattr(
        measuring.Measurement,
        "__call__",
        lambda self, step, params: {"validation/loss": losses[step]},
    )
    experiment = dataclasses.replace(
        tiny_experiment,
        workdir=str(tmp_path / "run"),
        tracking=Tracking(to=("my_callbacks:Plateau",)),
        evaluation=Evaluation(period=1, max_batches=1),
        checkpoints=Checkpoints(period=10, keep=5),
    )
    first = train(dataclasses.replace(experiment, steps=3))
    assert first.step == 3
    trained = train(dataclasses.replace(experiment, steps=5))
    assert (trained.step, trained.metrics) == (4, {"validation/loss": 2.25})
    message = "stopped early at step 4: my_callbacks:Plateau: no better loss since 2.0000"
    assert message in caplog.messages
    saved = [line.split() for line in capsys.readouterr().out.splitlines()]
    steps = tmp_path / "run" / "checkpoints"
    assert saved == [["3", str(steps / "3")], ["4", str(steps / "4")]]
    assert not list(steps.glob("*.incomplete"))
    caplog.clear()
    assert train(dataclasses.replace(experiment, steps=5)).step == 4
    assert message in caplog.messages


def test_stablehlo_runs_in_jax(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    write_checkpoint(tmp_path / "work", "bert").rename("work/encoder")
    command, code, *_ = (b for b in guide("export") if b.language in ("bash", "python"))
    run(command)
    names: dict = {}
    exec(code.text, names)
    expected = t5x_lite.load("work/encoder").encode(["a b", "c"], normalize=True)
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-6)


def test_the_options_of_lora_and_rows_of_new_tokens():
    page = ROOT / "docs" / "reference" / "adapter_methods.md"
    codes = [block.text for block in blocks(page) if "parse_module" in block.text]
    assert len(codes) == 2
    for code in codes:
        exec(code, {})


def glue(place):
    """A small BERT at work/bert, and files of SST-2 with its letters as words."""
    (place / "work").mkdir()
    write_checkpoint(place / "work", "bert")
    rows = [f"{'abcdefgh'[i % 8]} {'ijk'[i % 3]}\t{i % 2}" for i in range(40)]
    (place / "GLUE" / "SST-2").mkdir(parents=True)
    for split in ("train", "dev"):
        text = "\n".join(["sentence\tlabel", *rows]) + "\n"
        (place / "GLUE" / "SST-2" / f"{split}.tsv").write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words", "changed"),
    [
        ("adapters", "--adapters.base-dtype int8", {}),
        ("routing", "'Route(a, b)'", {"Route(a, b)": "Route(a, b, kind='sigmoid', top=1)"}),
    ],
)
def test_adapters_of_a_small_bert(page, words, changed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    glue(tmp_path)
    block = next(each for each in guide(page) if words in each.text)
    train = next(args for args in command_lines(block) if args[0] == "train")
    train = [changed.get(word, word) for word in train]
    assert main([*train, *SHORT["finetune"], "--data.inputs-length", "8"]) == 0
    workdir = train[train.index("--workdir") + 1]
    assert json.loads(Path(workdir, "config.json").read_text())["adapters"]["add"]
    answers = "answers.jsonl"
    Path("texts.jsonl").write_text('{"inputs": "a i"}\n')
    files = ["--input", "texts.jsonl", "--output", answers]
    assert main(["predict", "--checkpoint", workdir, *files]) == 0
    assert json.loads(Path(answers).read_text())["prediction"] in ("negative", "positive")
    if page == "adapters":
        assert main(["export", "adapter", workdir, "exported", "--base-name", "me/bert"]) == 0
        card = Path("exported/README.md").read_text()
        assert 'base_model: "me/bert"' in card
        assert "SST-2" in card or "sst2" in card
        assert main(["push", "exported", "me/adapter", "--dry-run"]) == 0


@pytest.mark.slow
def test_adapters_of_a_retriever(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    write_checkpoint(tmp_path / "work", "bert")
    pairs = "".join(f'{{"query": "{x}", "pos": ["{x} b"]}}\n' for x in "aecdfghi")
    Path("PAIRS").mkdir()
    for split in ("train", "validation"):
        Path(f"PAIRS/{split}.jsonl").write_text(pairs)
    train, *rest = command_lines(next(b for b in guide("train_retriever") if "dpr_lora" in b.text))
    lengths = ["--data.inputs-length", "8", "--data.targets-length", "8"]
    assert main([*train, *SHORT["finetune"], *lengths]) == 0
    for args in rest:
        assert main(args) == 0, args
    texts = ["a b", "c"]
    expected = t5x_lite.load("work/dpr_lora").encode(texts)
    for again in ("work/dpr_merged", "work/dpr_again"):
        np.testing.assert_allclose(t5x_lite.load(again).encode(texts), expected, atol=1e-5)


@pytest.mark.slow
def test_an_adapter_for_each_text(tmp_path, monkeypatch, capsys, tiny_run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/t5_small").symlink_to(tiny_run)
    args = [
        "--model",
        "init",
        "--init",
        "work/t5_small",
        "--steps",
        "3",
        "--workdir",
        "work/rte_t5",
    ]
    Path("tiny.json").write_text((tiny_run / "config.json").read_text())
    assert main(["train", "tiny.json", *args, "--adapters.add", "rte = lora(r=2)"]) == 0
    (tmp_path / "work/mnli_rte").symlink_to(tmp_path / "work/rte_t5")
    shell, code = (b for b in guide("several_tasks") if '"rte"' in b.text)
    record, (line,) = shell.text.split("'")[1], command_lines(shell)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{record}\n".encode())))
    capsys.readouterr()
    assert main(line) == 0
    answer = json.loads(capsys.readouterr().out)
    found = []
    shown = code.text.replace("model.generate(", "found.append(model.generate(") + ")"
    exec(shown, {"t5x_lite": t5x_lite, "found": found})
    assert len(found[0]) == 2
    inputs = json.loads(record)["inputs"]
    model = t5x_lite.load("work/t5_small")
    model.add_adapter("rte", "work/rte_t5")
    assert model.generate([inputs], adapters=["rte"]) == [answer["prediction"]]


def test_a_prompt_from_text(tmp_path, monkeypatch, capsys, tiny_vocabulary):
    from t5x_lite.adapters.grammar import parse_module

    monkeypatch.chdir(tmp_path)
    (tmp_path / "work/t5_small/files").mkdir(parents=True)
    (tmp_path / "work/t5_small/files/vocabulary").symlink_to(tiny_vocabulary.parent)
    page = ROOT / "docs" / "reference" / "adapter_methods.md"
    (code,) = (block.text for block in blocks(page) if "prompt(" in block.text)
    exec(code, {})
    option = capsys.readouterr().out.strip()
    prompt = parse_module(option.removeprefix("--adapters.add '").removesuffix("'"))
    assert (prompt.length, prompt.init) == (20, "vocab")
    assert len(prompt.ids) > 3


@pytest.mark.slow
def test_search_by_several_heads(tmp_path, monkeypatch):
    """Candidates by vectors and terms, and the exact late interaction of the best."""
    pytest.importorskip("pytrec_eval")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    write_ranker(
        tmp_path / "work", objective=m3(specials=(0, 1, 2, 3), vector_size=4), layout=Groups()
    ).rename("work/bge_m3")
    Path("BEIR/scifact/qrels").mkdir(parents=True)
    for name, words in (("corpus", "abcdefgh"), ("queries", "aek")):
        lines = [json.dumps({"_id": f"{name[0]}{x}", "text": f"{x} b"}) for x in words]
        Path(f"BEIR/scifact/{name}.jsonl").write_text("\n".join(lines) + "\n")
    qrels = "query-id\tcorpus-id\tscore\nqa\tca\t1\nqe\tce\t1\n"
    Path("BEIR/scifact/qrels/test.tsv").write_text(qrels)
    for args in command_lines(guide("bge_m3")[0]):
        if args[0] != "import":
            assert main(args) == 0, args
    ways = {path.stem for path in Path("work/scifact_runs").glob("*.trec")}
    assert ways == {"dense", "lexical", "multi_vector", "dense_lexical", "all"}


@pytest.mark.slow
def test_matryoshka(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    write_checkpoint(tmp_path / "work", "bert")
    [code] = (b.text for b in guide("train_retriever") if "Matryoshka(" in b.text)
    Path("short.py").write_text(code)
    pairs = "".join(f'{{"query": "{x}", "pos": ["{x} b"], "neg": []}}\n' for x in "aecdfghi")
    Path("PAIRS").mkdir()
    for split in ("train", "validation"):
        Path(f"PAIRS/{split}.jsonl").write_text(pairs)
    options = ["--model", "init", "--init", "work/bert", "--objective.dimensions", "4", "8"]
    options += ["--data.directory", "PAIRS", "--data.vocabulary", "work/bert/files/vocabulary"]
    options += [
        "--data.inputs-length",
        "8",
        "--data.targets-length",
        "8",
        "--workdir",
        "work/short",
    ]
    assert main(["train", "short.py", *options, *SHORT["finetune"]]) == 0
    model = t5x_lite.load("work/short")
    vectors, whole = model.encode(["a", "b"], dimensions=4), model.encode(["a", "b"])
    short = whole[:, :4] / np.linalg.norm(whole[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, short, atol=1e-6)


def test_smaller_vectors(tmp_path, monkeypatch, compile_once):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path, "bert").rename("RETRIEVER")
    for name, words in (("corpus", "abcdefgh"), ("queries", "aek")):
        lines = [json.dumps({"_id": f"{name}-{x}", "text": x}) for x in words]
        Path(f"{name}.jsonl").write_text("\n".join(lines))
    for args in command_lines(next(b for b in guide("search") if "binary" in b.text)):
        assert main([*args, "--dimensions", "8"]) == 0  # of 12; a byte has 8 signs
    full = np.load("full.npy")
    assert (full.dtype, np.load("signs.npy").dtype) == (np.float16, np.uint8)
    queries = t5x_lite.load("RETRIEVER").encode(list("aek"), normalize=True, dimensions=8)
    for query, found in zip(queries, read_run("run.trec"), strict=True):
        best = f"corpus-{'abcdefgh'[int(np.argmax(full @ query))]}"
        assert found.documents[0].document == best
        assert len(found.documents) == 8
