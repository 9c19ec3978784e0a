"""What a config leaves to its data: the steps of its epochs, and the classes of its head."""

import dataclasses
import types
from typing import Any

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.cli import main
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Bucketed, Data
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.tasks import text_source
from t5x_lite.data.tasks.stages import Source
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Linear
from t5x_lite.train import training
from t5x_lite.train.training import with_classes, with_epochs
from tests import tokenizer_files

SIZES: Any = {"vocab_size": 384, "d_model": 16, "d_ff": 32, "num_heads": 2}


@pytest.fixture
def experiment(tmp_path):
    """A tiny T5 on a table of 22 rows, in batches of 4."""
    rows = "".join(f"text {i},{i % 2}\n" for i in range(22))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    (tmp_path / "validation.csv").write_text("text,label\na,0\nb,1\n")
    return Experiment(
        model=T5Config(**SIZES, d_kv=8, num_encoder_layers=1, num_decoder_layers=1),
        objective=Seq2Seq(),
        data=Data(
            task="tasks.files:classify",
            directory=str(tmp_path),
            vocabulary="bytes",
            columns=Columns(inputs="{text}", targets="{label}", labels=("0", "1")),
            batch_size=4,
            inputs_length=16,
            targets_length=8,
            pack=False,
        ),
        optimizer=AdamW(schedule=Linear(total_steps=1000, warmup_steps=100)),
        steps=1000,
        epochs=3.0,
        workdir=str(tmp_path / "run"),
        checkpoints=Checkpoints(period=500),
        evaluation=Evaluation(period=500, max_decode_length=4),
    )


def test_epochs_of_a_table(experiment):
    found = with_epochs(experiment)
    assert found.steps == 17  # 3 * 22 / 4, rounded up
    assert found.optimizer.schedule == Linear(total_steps=17, warmup_steps=2)
    assert (found.checkpoints.period, found.epochs) == (8, 3.0)
    assert with_epochs(found) == found
    schedule = Linear(total_steps=1000, warmup_steps=5)
    given = dataclasses.replace(experiment, optimizer=AdamW(schedule=schedule))
    options = [
        "--epochs",
        "3",
        "--optimizer.schedule.warmup_steps=5",
        "--checkpoints.period",
        "500",
    ]
    kept = with_epochs(given, options=options)
    assert kept.optimizer.schedule == Linear(total_steps=17, warmup_steps=5)
    assert kept.checkpoints.period == 500
    assert with_epochs(dataclasses.replace(experiment, epochs=0.01)).steps == 1


def test_packed_rows_and_several_shapes_are_counted_in_memory_alone(
    experiment, caplog, monkeypatch
):
    caplog.set_level("INFO", "t5x_lite")
    packed = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, pack=True))
    shapes = dataclasses.replace(
        experiment.data, layout=layouts.Labelled(), batches=Bucketed({8: 8, 16: 4})
    )
    encoder = BertConfig(**SIZES, num_layers=1, max_positions=16)
    grouped = dataclasses.replace(experiment, model=encoder, objective=Classify(), data=shapes)
    steps = [with_epochs(one, options=["--epochs", "3"]).steps for one in (packed, grouped)]
    assert all(0 < number < 1000 for number in steps)
    monkeypatch.setattr(Source, "fits_in_memory", lambda source, split: False)
    message = "data.pack True needs a number of steps, because a streamed task does not give its"
    with pytest.raises(InputError, match=message):
        with_epochs(packed, options=["--epochs", "3"])
    stays = with_epochs(packed)
    assert (stays.epochs, stays.steps) == (None, 1000)
    assert "training for the config's 1,000 steps" in caplog.text
    with pytest.raises(InputError, match="batches of several shapes need a number of steps"):
        with_epochs(grouped, options=["--epochs", "3"])


def test_texts_in_memory_are_counted_and_a_stream_is_not(experiment, tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "texts" / f"{split}.txt").write_text("a b c d e f g h\n\n" * 6)
    data = dataclasses.replace(
        experiment.data,
        task="tasks.text:span_corruption",
        directory=str(tmp_path / "texts"),
        columns=Columns(),
    )
    experiment = dataclasses.replace(experiment, data=data)
    assert 1 <= with_epochs(experiment, options=["--epochs", "3"]).steps < 50
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 1)
    with pytest.raises(
        InputError,
        match=r"tasks.text:span_corruption is streamed, so its number of examples is unknown",
    ):
        with_epochs(experiment, options=["--epochs", "3"])


def test_a_plan_needs_no_data(experiment):
    data = dataclasses.replace(experiment.data, directory="none")
    experiment = dataclasses.replace(experiment, data=data)
    with pytest.raises(InputError, match="none"):
        with_epochs(experiment)
    assert with_epochs(experiment, may_lack_data=True).steps == 1000
    with pytest.raises(InputError, match="none"):
        with_epochs(experiment, options=["--epochs", "3"], may_lack_data=True)


def test_the_head_is_that_of_the_family_and_has_the_classes_of_the_task(experiment):
    data = dataclasses.replace(experiment.data, layout=layouts.Labelled())
    encoder = BertConfig(**SIZES, num_layers=1, max_positions=16)
    bert = dataclasses.replace(
        experiment, model=encoder, data=data, objective=Classify(num_classes=0, head="auto")
    )
    found: Any = with_classes(bert, reads_task=False)
    assert (found.objective.head, found.objective.num_classes) == ("bert", 2)
    deberta = DebertaConfig(**SIZES, num_layers=1)
    other: Any = with_classes(dataclasses.replace(bert, model=deberta), reads_task=False)
    assert other.objective.head == "deberta"
    earlier = dataclasses.replace(bert, objective=Classify(num_classes=5, head="electra"))
    assert with_classes(bert, earlier=earlier).objective == earlier.objective
    with pytest.raises(InputError, match=r"Classify needs an encoder, but the model is a T5Config"):
        with_classes(dataclasses.replace(bert, model=experiment.model))
    given = dataclasses.replace(bert, objective=Classify(num_classes=3))
    assert with_classes(given) is given


def test_balanced_weights_are_those_of_the_training_data(experiment, tmp_path, caplog):
    """As sklearn.utils.class_weight.compute_class_weight("balanced"): n / (k n_c)."""
    caplog.set_level("INFO", logger="t5x_lite")
    (tmp_path / "train.csv").write_text("a,b\n" + "x,no\n" * 6 + "x,yes\n" * 2)
    (tmp_path / "validation.csv").write_text("a,b\nx,no\nx,perhaps\n")
    data = dataclasses.replace(
        experiment.data,
        task="tasks.files:classify",
        directory=str(tmp_path),
        columns=Columns(inputs="{a}", targets="{b}", labels=("no", "perhaps", "yes")),
        layout=layouts.Labelled(),
        vocabulary=str(tokenizer_files.write_wordpiece(tmp_path)),
    )
    encoder = BertConfig(**SIZES, num_layers=1, max_positions=16)
    balanced = dataclasses.replace(
        experiment,
        model=encoder,
        data=data,
        objective=Classify(num_classes=0, class_weights="balanced"),
    )
    found: Any = with_classes(balanced)
    assert (found.objective.num_classes, found.objective.class_weights) == (3, (8 / 12, 1.0, 2.0))
    assert "using the balanced class weights 0.6667, 1, 2" in caplog.messages
    planned: Any = with_classes(balanced, reads_task=False)
    assert (planned.objective.num_classes, planned.objective.class_weights) == (2, ())
    # A run that resumes has the weights that it began with.
    objective = Classify(num_classes=3, class_weights=(1.0, 2.0, 3.0))
    earlier = dataclasses.replace(balanced, objective=objective)
    assert with_classes(balanced, earlier=earlier).objective == objective
    three = dataclasses.replace(
        balanced, objective=Classify(num_classes=0, class_weights=(1.0, 2.0))
    )
    with pytest.raises(InputError, match="one weight for each of 3 classes: got 2"):
        with_classes(three)


CONFIG = """
from tests.train.test_completion import SIZES
from t5x_lite.config import Evaluation, Experiment
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.config import Linear
experiment = Experiment(
    model=T5Config(**SIZES, d_kv=8, num_encoder_layers=1, num_decoder_layers=1),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.files:classify", vocabulary="bytes", batch_size=4, inputs_length=16,
        columns=Columns(inputs="{text}", targets="{label}", labels=("0", "1")),
        targets_length=8, pack=False,
    ),
    optimizer=AdamW(schedule=Linear(total_steps=1000, warmup_steps=100)),
    steps=1000,
    evaluation=Evaluation(task_metrics=False),
)
"""


@pytest.mark.slow
def test_train_by_epochs_and_resume(experiment, tmp_path, capsys):
    (tmp_path / "config.py").write_text(CONFIG)
    command = ["train", str(tmp_path / "config.py"), "--data.directory", str(tmp_path)]
    assert main([*command, "--epochs", "1", "--steps", "9", "--workdir", experiment.workdir]) == 2
    assert "--steps 9 and --epochs 1 both set the length" in capsys.readouterr().err
    assert main([*command, "--epochs", "1", "--dry-run"]) == 0
    assert "steps: 6, some 4 examples each, about 1.09 epochs of 22" in capsys.readouterr().out
    assert main([*command, "--epochs", "1", "--workdir", experiment.workdir]) == 0
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()
    assert main([*command, "--epochs", "1", "--workdir", experiment.workdir]) == 0
    assert "is at step 6 of 6: done" in capsys.readouterr().err
    assert main([*command, "--epochs", "2", "--workdir", experiment.workdir]) == 2
    assert (
        "optimizer.schedule.total_steps is 6 in the saved config and 11 now"
        in capsys.readouterr().err
    )


def test_balanced_weights_of_words_count_tokens(experiment, monkeypatch):
    """Labels are the class + 1, and 0 is a token without a label."""

    class Split:
        def read(self, numbers):
            return [{"token_labels": np.array([0, 1, 2, 1, 0, 1])}] * len(numbers)

    sources = [types.SimpleNamespace(size=2, split=Split())]
    monkeypatch.setattr(training.data_batches, "training_sources", lambda *_, **__: sources)
    monkeypatch.setattr(training, "load_vocabulary", lambda *_, **__: None)
    data = dataclasses.replace(experiment.data, layout=layouts.Tokens())
    assert training.balanced_weights(data, 3) == (8 / 12, 2.0, 1.0)
    sources[0].size = None
    with pytest.raises(InputError, match="the task is streamed; write a cache"):
        training.balanced_weights(data, 3)
