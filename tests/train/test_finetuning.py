"""A config from a checkpoint and a table."""

import dataclasses
import shutil

import pytest

from scripts import goldens
from t5x_lite.commands.weights import import_hf
from t5x_lite.config.experiment import check_same_experiment, save
from t5x_lite.core.errors import InputError
from t5x_lite.data.preprocessors import Columns
from t5x_lite.train.finetuning import experiment_for, finetune
from tests.encoder_checkpoint import write_checkpoint

COLUMNS = Columns(inputs="review: {text}", targets="{stars}", hold_out=10)


@pytest.fixture(scope="module")
def t5(tmp_path_factory, tiny_vocabulary):
    root = tmp_path_factory.mktemp("finetuning")
    goldens.write_release(goldens.read("t5"), root / "source", spiece=tiny_vocabulary)
    import_hf(root / "source", root / "t5")
    return str(root / "t5")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("finetuning"), "bert"))


@pytest.fixture
def table(tmp_path):
    def write(rows=200, stars=lambda i: i % 2):
        lines = [f"{' '.join('abcdefg'[: 1 + i % 7])} {i},{stars(i)}\n" for i in range(rows)]
        (tmp_path / "reviews.csv").write_text("text,stars\n" + "".join(lines))
        return str(tmp_path / "reviews.csv")

    return write


def made(checkpoint, table, *options, columns=COLUMNS, **others):
    arguments = {"columns": columns, "table": table, "workdir": "run", "options": options, **others}
    return experiment_for(checkpoint, **arguments)


def test_a_t5_and_a_table_of_few_labels(t5, table, caplog):
    caplog.set_level("INFO", "t5x_lite")
    experiment = made(t5, table(), epochs=4)
    data = experiment.data
    assert data.task == "tasks.files:classify"
    assert data.columns.labels == ("0", "1")
    assert (data.inputs_length % 8, data.targets_length, data.pack) == (0, 8, False)
    assert data.vocabulary == f"{t5}/files/vocabulary"
    assert experiment.init.checkpoint == t5
    assert experiment.model.d_model == goldens.read("t5").config["d_model"]
    # About one row in ten is held out, and the rest makes 32 a step.
    assert 4 * 160 / 32 <= experiment.steps <= 4 * 200 / 32
    assert type(experiment.optimizer).__name__ == "Adafactor"
    assert "tokens per text of inputs: median" in caplog.text
    assert "found 2 distinct targets; training with --task classify (0, 1)" in caplog.text


def test_options_win_and_adapters_have_their_optimizer(t5, table):
    experiment = made(
        *(t5, table(), "--adapters.add", "mine = lora(r=2)", "--steps", "7", "--seed", "3"),
        *("--data.inputs-length", "40", "--optimizer.schedule.peak", "0.5"),
    )
    assert (experiment.steps, experiment.seed, experiment.data.inputs_length) == (7, 3, 40)
    assert experiment.adapters.add == ("mine = lora(r=2)",)
    assert type(experiment.optimizer).__name__ == "AdamW"
    assert experiment.optimizer.schedule.peak == 0.5
    with pytest.raises(InputError, match=r"unknown option --stps; did you mean --steps\?"):
        made(t5, table(), "--stps", "7")


def test_free_text_and_words_for_labels(t5, table):
    free = made(t5, table(stars=lambda i: f"about {i}"))
    assert free.data.task == "tasks.files:text_to_text"
    words = Columns(inputs="{text}", targets="{stars}", labels=("0=bad", "1=good"), hold_out=10)
    assert made(t5, table(), columns=words).data.columns.words() == ("bad", "good")
    assert made(t5, table(), task="regress").data.task == "tasks.files:regress"


def test_an_encoder_gets_its_labels_from_the_data(bert, table):
    experiment = made(bert, table(stars=lambda i: "xyz"[i % 3]))
    assert experiment.objective.num_classes == 3
    assert experiment.objective.head == "bert"
    assert experiment.data.columns.labels == ("x", "y", "z")
    assert experiment.data.layout.name == "labelled"
    score = made(bert, table(stars=lambda i: i / 10))
    assert score.data.task == "tasks.files:regress"
    assert score.objective.num_classes == 1
    with pytest.raises(InputError, match=r"--task translate generates text, but an encoder cannot"):
        made(bert, table(), task="translate")
    with pytest.raises(InputError, match=r"too many for the classes of an encoder"):
        made(bert, table(stars=lambda i: f"about {i}"))


def test_lengths_stay_within_the_positions_of_an_encoder(bert, tmp_path):
    (tmp_path / "train.jsonl").write_text(('{"text": "' + "a " * 500 + '", "stars": 1}\n') * 3)
    experiment = made(bert, str(tmp_path), columns=dataclasses.replace(COLUMNS, hold_out=0))
    assert experiment.data.inputs_length == experiment.model.longest_document


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,stars\n", r"no training rows in .*train\.csv"),
        ("", r"train\.csv: the file is empty; its first line must name the columns"),
        ("text,stars\na,1\nb,\nc,1\n", r"train\.csv:3: the label '\{stars\}' is empty; fill it"),
        ("text,stars\na,1\nb,' '\n".replace("'", '"'), r"train\.csv:3: the label .* is empty"),
        ("txt,stars\na,1\n", r"train\.csv:1: the header lacks text; the columns are txt, stars"),
    ],
)
def test_bad_tables(t5, tmp_path, text, message):
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        made(t5, str(tmp_path))


def test_what_is_missing(t5, tmp_path):
    with pytest.raises(InputError, match=r"has no file of training rows; name it train\.csv"):
        made(t5, str(tmp_path))
    with pytest.raises(InputError, match=r"--table .*none\.csv: no such file or directory"):
        made(t5, str(tmp_path / "none.csv"))


def test_labels_that_teach_nothing_are_told(bert, table, caplog):
    made(bert, table(stars=lambda i: 1), task="classify")
    assert "all training rows have the label '1'; a model learns nothing from" in caplog.text
    columns = dataclasses.replace(COLUMNS, labels=("0", "1", "2"))
    made(bert, table(), columns=columns)
    assert "no training row has the label '2'" in caplog.text


@pytest.mark.slow
@pytest.mark.gate("bert")
@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_it_trains_and_resumes(kind, request, table, tmp_path, caplog):
    caplog.set_level("INFO", "t5x_lite")
    options = {
        "table": table(),
        "inputs": "{text}",
        "targets": "{stars}",
        "workdir": str(tmp_path / "run"),
        "options": ["--steps", "3", "--evaluation.period", "3", "--checkpoints.period", "3"],
    }
    finetune(request.getfixturevalue(kind), **options)
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()
    finetune(request.getfixturevalue(kind), **options)
    assert "is at step 3 of 3: done" in caplog.text


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_the_same_command_resumes_if_the_checkpoint_is_gone(family, table, tmp_path, request):
    gone, workdir = tmp_path / "gone", str(tmp_path / "run")
    shutil.copytree(request.getfixturevalue(family), gone)
    options, rows = ("--seed", "3", "--adapters.add", "m = lora(r=2)"), table()
    begun = made(str(gone), rows, *options, workdir=workdir)
    save(begun, tmp_path / "run" / "config.json")
    shutil.rmtree(gone)
    assert made(str(gone), rows, *options, workdir=workdir) == begun
    later = made(str(gone), rows, *options, "--log-period", "7", workdir=workdir)
    assert later == dataclasses.replace(begun, log_period=7)
    other = made(str(gone), rows, *options, workdir=workdir, task="regress")
    with pytest.raises(InputError, match=r"data\.task is 'tasks\.files:classify' in the saved"):
        check_same_experiment(begun, other, workdir)
    with pytest.raises(InputError, match="no such directory"):
        made(str(gone), rows, *options, workdir=str(tmp_path / "another"))
