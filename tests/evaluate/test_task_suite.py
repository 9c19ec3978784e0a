"""A mixture of GLUE, of which few tasks are there: measured one by one, its submission files."""

import dataclasses
import json

import pytest

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.config.evaluation import EarlyStopping
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.submission import FORMATS, check
from t5x_lite.evaluate.task_suite import TaskSuite
from t5x_lite.inference.loading import Loaded
from t5x_lite.objectives.task_heads import Classify, Spans
from t5x_lite.train.measuring import Measurement, evaluate
from t5x_lite.train.training import train
from tests import tokenizer_files

pytest.importorskip("seqio")

PAIR = "index\tsentence1\tsentence2"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def few_glue(tmp_path_factory, english_lines):
    """SST-2 without a test file, and RTE and WNLI with one; the others are not there."""
    root = tmp_path_factory.mktemp("few_glue")
    for name in ("SST-2", "RTE", "WNLI"):
        (root / name).mkdir()
    for split, lines in (("train", english_lines[:20]), ("dev", english_lines[20:24])):
        rows = "".join(f"{line[:40]}\t{i % 2}\n" for i, line in enumerate(lines))
        (root / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\n" + rows)
        rows = "".join(
            f"{i}\t{line[:20]}\t{line[20:40]}\t{('not_entailment', 'entailment')[i % 2]}\n"
            for i, line in enumerate(lines)
        )
        (root / "RTE" / f"{split}.tsv").write_text(f"{PAIR}\tlabel\n" + rows)
    rows = "".join(f"{i}\t{line[:20]}\t{line[20:40]}\n" for i, line in enumerate(english_lines[:6]))
    (root / "RTE" / "test.tsv").write_text(f"{PAIR}\n{rows}")
    row = "The fish ate the worm. It was tasty.\tThe worm was tasty."
    (root / "WNLI" / "dev.tsv").write_text(f"{PAIR}\tlabel\n0\t{row}\t1\n1\t{row}\t0\n")
    (root / "WNLI" / "test.tsv").write_text(f"{PAIR}\n0\t{row}\n")
    return root


@pytest.fixture(scope="module")
def mixed(tiny_experiment, few_glue):
    """The tiny experiment, to be measured on GLUE."""
    data = dataclasses.replace(
        tiny_experiment.data, task="tasks.mixtures:glue", directory=str(few_glue)
    )
    evaluation = Evaluation(loss=False, max_decode_length=4, num_samples=4)
    return dataclasses.replace(tiny_experiment, data=data, evaluation=evaluation)


def suite_of(tiny_run, experiment):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    mesh = make_mesh(MeshConfig())
    return TaskSuite(
        experiment, loaded.vocabulary, bind=loaded.learner.bind_model, mesh=mesh
    ), loaded


NAMES = ["glue_sst2/accuracy", "glue_sst2/score", "glue_rte/accuracy", "glue_rte/score", "score"]


@pytest.mark.exhaustive
def test_the_tasks_that_are_there_are_measured(tiny_run, mixed, caplog, compile_once):
    caplog.set_level("INFO", logger="t5x_lite")
    suite, loaded = suite_of(tiny_run, mixed)
    assert suite.is_mixture
    assert list(suite.sources) == ["glue_sst2", "glue_rte"]
    assert list(suite.evaluators) == ["glue_sst2", "glue_rte"]
    assert suite.names() == NAMES
    assert suite.submittable() == ["glue_sst2", "glue_rte"]
    absent = [message for message in caplog.messages if "skipping task" in message]
    assert len(absent) == 10
    (wnli,) = [message for message in absent if message.startswith("skipping task glue_wnli")]
    assert wnli.startswith(
        "skipping task glue_wnli: its inputs have the form of tasks.super_glue:wsc and "
        "tasks.super_glue:dpr, which this mixture does not train on; run evaluate "
        "--data.task tasks.glue:wnli with the --checkpoint of a run that trained on this form"
    )
    assert absent[0].startswith("skipping task glue_cola: no CoLA/train.tsv in data.directory")
    assert suite.answers("glue_sst2", loaded.params) is None  # it has no test.tsv


def test_one_of_them_alone_has_plain_names(tiny_run, mixed):
    alone = dataclasses.replace(mixed, data=dataclasses.replace(mixed.data, task="tasks.glue:rte"))
    suite, _ = suite_of(tiny_run, alone)
    assert not suite.is_mixture
    assert suite.names() == ["accuracy", "score"]
    assert list(suite.sources) == suite.submittable() == ["glue_rte"]


def test_a_broken_file_is_not_an_absent_one(tiny_run, mixed, tmp_path):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "dev.tsv").write_text(f"{PAIR}\tlabel\n0\ta\n")
    data = dataclasses.replace(mixed.data, directory=str(tmp_path))
    with pytest.raises(
        InputError, match=r"dev\.tsv:2: the line has 2 columns, but the header has 4"
    ):
        suite_of(tiny_run, dataclasses.replace(mixed, data=data))


def test_samples_say_which_task_they_are_of(tiny_run, mixed, tmp_path):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    made = Measurement(
        mixed, loaded.learner, loaded.vocabulary, mesh=make_mesh(MeshConfig()), workdir=tmp_path
    )
    metrics = made(10, loaded.params)
    assert list(metrics) == [f"validation/{name}" for name in NAMES]
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines] == ["glue_sst2", "glue_sst2", "glue_rte", "glue_rte"]


def test_evaluate_writes_rows_predictions_and_submissions(
    tiny_run, mixed, tmp_path, capsys, caplog
):
    caplog.set_level("INFO", logger="t5x_lite")
    settings = dataclasses.replace(mixed.evaluation, rank=True, bootstrap=20)
    metrics = evaluate(
        dataclasses.replace(mixed, evaluation=settings), [str(tiny_run)], output=str(tmp_path)
    )
    assert list(metrics) == [f"validation/{name}" for name in NAMES]
    assert json.loads(capsys.readouterr().out) == {"step": 10, **metrics}
    written = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert written == [
        "classes.jsonl",
        "metrics.json",
        "predictions/glue_rte.jsonl",
        "predictions/glue_sst2.jsonl",
        "submission/glue/RTE.tsv",
    ]
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert {name: content[name] for name in metrics} == metrics
    rte = metrics["validation/glue_rte/accuracy"]
    assert content["tasks"]["glue_rte"] == {
        "step": 10, "accuracy": rte, "score": rte, "invalid_predictions": 0,
    }  # fmt: skip
    glue = content["benchmarks"]["GLUE"]
    assert glue["score"] is None
    assert list(glue["rows"]) == ["SST-2", "RTE"]
    assert glue["missing"] == ["CoLA", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "WNLI"]
    low, high = content["intervals"]["validation/glue_rte/accuracy"]
    assert 0 <= low <= rte <= high <= 1
    rte_file = (tmp_path / "submission" / "glue" / "RTE.tsv").read_text()
    check(FORMATS["glue_rte"], rte_file, expected=[(i,) for i in range(6)])
    told = "\n".join(caplog.messages)
    assert "task       step  score  metrics" in told
    assert "RTE.tsv has 6 rows, but the official test set has 3000; the server will reject" in told


def test_a_part_of_the_examples_makes_no_submission(tiny_run, mixed, tmp_path):
    few = dataclasses.replace(mixed.evaluation, max_examples=2)
    evaluate(dataclasses.replace(mixed, evaluation=few), [str(tiny_run)], output=str(tmp_path))
    assert not (tmp_path / "submission").exists()
    assert json.loads((tmp_path / "metrics.json").read_text())["tasks"]["glue_rte"][
        "invalid_predictions"
    ] in (0, 1, 2)


@pytest.fixture(scope="module")
def few_super_glue(tmp_path_factory, few_glue):
    """RTE, AX-b and AX-g, of which AX-b has one line that is wrong; and GLUE's WNLI."""
    root = tmp_path_factory.mktemp("few_super_glue")
    for name in ("RTE", "AX-b", "AX-g"):
        (root / name).mkdir()
    (root / "WNLI").symlink_to(few_glue / "WNLI")
    pair = {"premise": "It rained.", "hypothesis": "It was dry."}
    labels = ("entailment", "not_entailment")
    lines = [json.dumps(pair | {"label": labels[i % 2], "idx": i}) for i in range(2)]
    (root / "RTE" / "val.jsonl").write_text("\n".join(lines))
    (root / "AX-g" / "AX-g.jsonl").write_text(json.dumps(pair | {"idx": "0"}))
    (root / "AX-b" / "AX-b.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "idx": "x"}')
    return root


def test_super_glue_answers_wnli_and_one_bad_file_costs_itself_alone(
    tiny_run, mixed, few_super_glue, tmp_path, capsys, caplog
):
    caplog.set_level("INFO", logger="t5x_lite")
    data = dataclasses.replace(
        mixed.data, task="tasks.mixtures:super_glue", directory=str(few_super_glue)
    )
    experiment = dataclasses.replace(mixed, data=data)
    with pytest.raises(InputError) as caught:
        evaluate(experiment, [str(tiny_run)], output=str(tmp_path))
    reason = (
        f'super_glue_axb: {few_super_glue}/AX-b/AX-b.jsonl:1: "idx" must be a whole number from 0 '
        'to 4294967295, got "x"'
    )
    assert str(caught.value) == f"1 of 3 submission files could not be written ({reason})"
    warned = caplog.messages.index(
        reason.replace(": ", ": skipping the submission file, because ", 1)
    )
    assert warned < next(i for i, told in enumerate(caplog.messages) if "wrote" in told)
    written = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("submission/*/*"))
    assert written == ["submission/glue/WNLI.tsv", "submission/superglue/AX-g.jsonl"]
    wnli_file = (tmp_path / "submission" / "glue" / "WNLI.tsv").read_text()
    check(FORMATS["glue_wnli"], wnli_file, expected=[(0,)])
    metrics = json.loads(capsys.readouterr().out)
    assert "validation/glue_wnli/score" in metrics
    assert metrics["validation/score"] == metrics["validation/super_glue_rte/score"]
    table = next(told for told in caplog.messages if told.startswith("task"))
    assert [line.partition(" ")[0] for line in table.splitlines()] == [
        "task", "super_glue_rte", "glue_wnli", "SuperGLUE",
    ]  # fmt: skip


UNLABELLED = r"'tasks.glue:rte' has no labels in split 'test', so metrics cannot be computed; set"


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("rte", {"loss": False}, UNLABELLED),
        ("rte", {"loss": True, "task_metrics": False}, UNLABELLED),
        ("stsb", {"loss": False}, "'tasks.glue:stsb' has no labels in split 'test'"),
        ("mrpc", {"loss": False}, "'tasks.glue:mrpc' has no labels in split 'test'"),
        ("wnli", {"loss": False}, "'tasks.glue:wnli' has no labels in split 'test'"),
        ("ax", {"loss": False}, "run `evaluate --output DIR` on the task's mixture"),
    ],
)
def test_a_test_split_without_labels_is_refused_by_name(
    tiny_run, mixed, few_glue, tmp_path, task, settings, message
):
    for name in ("STS-B", "MRPC", "diagnostic"):
        (tmp_path / name).mkdir()
    for name in ("RTE", "WNLI"):
        (tmp_path / name).symlink_to(few_glue / name)
    (tmp_path / "STS-B" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    (tmp_path / "MRPC" / "test.tsv").write_text("index\t#1 String\t#2 String\n0\ta\tb\n")
    (tmp_path / "diagnostic" / "diagnostic.tsv").write_text(
        "index\tsentence1\tsentence2\n0\ta\tb\n"
    )
    data = dataclasses.replace(mixed.data, task=f"tasks.glue:{task}", directory=str(tmp_path))
    evaluation = dataclasses.replace(mixed.evaluation, split="test", **settings)
    with pytest.raises(InputError, match=message):
        evaluate(dataclasses.replace(mixed, data=data, evaluation=evaluation), [str(tiny_run)])


def test_a_suite_on_test_splits_without_labels_writes_its_submissions(
    tiny_run, mixed, tmp_path, capsys, caplog
):
    caplog.set_level("INFO", logger="t5x_lite")
    settings = dataclasses.replace(mixed.evaluation, split="test", loss=True)
    evaluate(dataclasses.replace(mixed, evaluation=settings), [str(tiny_run)], output=str(tmp_path))
    assert json.loads(capsys.readouterr().out) == {"step": 10}
    assert "skipping task glue_rte, because its split test has no labels" in caplog.messages
    assert "skipping the held-out loss, because glue_rte has no labels" in caplog.messages
    assert (tmp_path / "submission" / "glue" / "RTE.tsv").exists()


def test_text_that_the_vocabulary_cannot_spell_is_told(tiny_run, mixed, tmp_path, caplog):
    rows = [{"inputs": "it rains", "targets": target} for target in ("\u96e8", "rain")]
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = dataclasses.replace(
        mixed.data,
        task="tasks.files:text_to_text",
        directory=str(tmp_path),
        columns=Columns(inputs="{inputs}", targets="{targets}"),
    )
    evaluate(dataclasses.replace(mixed, data=data), [str(tiny_run)])
    (told,) = [message for message in caplog.messages if "unknown" in message]
    assert told.startswith(
        "unknown tokens in task files_text_to_text: 50% of targets have unknown tokens ("
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_mixture_is_trained_and_each_task_keeps_its_best(mixed, tmp_path, few_glue, caplog):

    caplog.set_level("INFO", logger="t5x_lite")
    absent = tuple(f"glue_{name}" for name in ("cola", "mrpc", "qqp", "stsb", "mnli", "qnli"))
    experiment = dataclasses.replace(
        mixed,
        workdir=str(tmp_path / "run"),
        steps=3,
        data=dataclasses.replace(mixed.data, mixing=Mixing(leave_out=absent)),
        checkpoints=Checkpoints(period=1, keep=1, best="validation/*/score"),
        evaluation=dataclasses.replace(mixed.evaluation, period=1, rank=True, loss=True),
    )
    train(experiment)
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert set(best["tasks"]) == {"glue_sst2", "glue_rte"}
    kept = {int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit()}
    assert kept == {3} | {row["step"] for row in best["tasks"].values()}
    chosen = dataclasses.replace(
        experiment,
        evaluation=dataclasses.replace(experiment.evaluation, best_per_task=True, loss=False),
    )
    metrics = evaluate(chosen, [str(tmp_path / "run")], output=str(tmp_path / "out"))
    rows = json.loads((tmp_path / "out" / "metrics.json").read_text())["tasks"]
    for name, row in best["tasks"].items():
        assert rows[name]["step"] == row["step"]
        assert metrics[f"validation/{name}/accuracy"] == pytest.approx(row["accuracy"])


@pytest.mark.parametrize(
    ("field", "name"), [("best", "test/accuracy"), ("best", "*/accuracy"), ("metric", "test/loss")]
)
def test_no_test_split_chooses_a_checkpoint(tiny_experiment, tmp_path, field, name):
    (tmp_path / "RTE").mkdir()
    for split in ("train", "test"):  # with labels, so that there is something to choose by
        rows = f"{PAIR}\tlabel\n0\ta\tb\tentailment\n"
        (tmp_path / "RTE" / f"{split}.tsv").write_text(rows)
    with pytest.raises(InputError, match="selects a model by a test split"):
        train(
            dataclasses.replace(
                tiny_experiment,
                workdir=str(tmp_path / "run"),
                data=dataclasses.replace(
                    tiny_experiment.data, task="tasks.glue:rte", directory=str(tmp_path)
                ),
                checkpoints=Checkpoints(best=name if field == "best" else None),
                stop_early=EarlyStopping(metric=name if field == "metric" else None),
                evaluation=Evaluation(split="test", loss=False, max_examples=1),
            )
        )
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.mark.parametrize(
    ("task", "objective", "message"),
    [
        ("tasks.glue:sst2", Classify(), None),
        ("tasks.squad:squad", Spans(), None),
        (
            "tasks.glue:sst2",
            Spans(),
            "requires a head that predicts a class or a score, but the head span predicts",
        ),
        ("tasks.squad:squad", Classify(num_classes=1), "use the objective Spans$"),
        ("tasks.glue:rte", Classify(num_classes=3), "set --objective.num-classes 2$"),
    ],
)
def test_a_head_answers_what_its_task_asks(
    tiny_experiment, few_glue, wordpiece, tmp_path, task, objective, message
):
    directory = few_glue
    if "squad" in task:
        answer = {"text": "Rain", "answer_start": 0}
        asked = [{"id": "q", "question": "What fell?", "answers": [answer]}]
        paragraphs = [{"context": "Rain fell.", "qas": asked}]
        directory = tmp_path
        for name in ("train-v1.1.json", "dev-v1.1.json"):
            content = {"data": [{"title": "", "paragraphs": paragraphs}]}
            (directory / name).write_text(json.dumps(content))
    data = Data(
        task=task,
        vocabulary="",
        directory=str(directory),
        layout=layouts.Labelled(),
        inputs_length=16,
        pack=False,
        batch_size=2,
    )
    # Whether metrics are asked for or not.
    evaluation = Evaluation(task_metrics=False)
    experiment = dataclasses.replace(
        tiny_experiment, objective=objective, data=data, evaluation=evaluation
    )

    def make():
        return TaskSuite(experiment, wordpiece, bind=lambda _: None, mesh=make_mesh(MeshConfig()))

    if message is None:
        assert len(make().sources) == 1
        return
    with pytest.raises(InputError, match=message):
        make()


def test_metrics_of_classes_need_classes(tiny_run, mixed, few_glue, tmp_path):
    """STS-B has texts to rank and no classes; in a mixture it has its own metrics only."""
    for name in ("RTE", "SST-2"):
        (tmp_path / name).symlink_to(few_glue / name)
    (tmp_path / "STS-B").mkdir()
    rows = "".join(f"{i}\ta\tb\t{i / 2}\n" for i in range(4))
    (tmp_path / "STS-B" / "train.tsv").write_text(f"{PAIR}\tscore\n{rows}")
    (tmp_path / "STS-B" / "dev.tsv").write_text(f"{PAIR}\tscore\n{rows}")
    settings = dataclasses.replace(mixed.evaluation, class_metrics=("macro_f1",))
    data = dataclasses.replace(mixed.data, directory=str(tmp_path))
    suite, loaded = suite_of(tiny_run, dataclasses.replace(mixed, data=data, evaluation=settings))
    names = {name: one.names() for name, one in suite.evaluators.items()}
    assert names["glue_rte"] == ["accuracy", "macro_f1"]
    assert names["glue_stsb"] == ["pearson_corrcoef", "spearman_corrcoef"]
    suite.run(loaded.params)
    tables = suite.class_tables()
    assert list(tables) == ["glue_sst2", "glue_rte"]
    assert tables["glue_rte"].labels == ("entailment", "not_entailment")
    alone = dataclasses.replace(data, task="tasks.glue:stsb")
    with pytest.raises(InputError, match=r"'tasks\.glue:stsb' has none; unset evaluation"):
        suite_of(tiny_run, dataclasses.replace(mixed, data=alone, evaluation=settings))
