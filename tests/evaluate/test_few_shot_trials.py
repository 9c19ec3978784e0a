"""Few-shot prompts of real tasks: an encoder-decoder, decoders alone, a mixture, wrong inputs."""

import dataclasses
import json

import jax
import pytest

from t5x_lite import layouts
from t5x_lite.config import Evaluation, FewShot
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.few_shot_trials import ShownExamples
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.models.lm import LMConfig
from t5x_lite.objectives.likelihood import LanguageModel
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.train.measuring import Measurement, evaluate

pytest.importorskip("seqio")

SHOWN = FewShot(examples=2, seeds=(0, 1), orders=2)
TRAIN = [("rain", "wet"), ("sun", "dry"), ("snow", "wet"), ("sand", "dry")]
VALIDATION = [("rain", "wet"), ("wind", "dry")]


@pytest.fixture
def weather(tmp_path):
    """A directory with a task of four training examples, one of them a validation example too."""
    for split, rows in (("train", TRAIN), ("validation", VALIDATION)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def asked(tiny_experiment, weather):
    """The tiny experiment, to be asked about the weather with examples."""
    data = dataclasses.replace(
        tiny_experiment.data,
        task="tasks.files:classify",
        directory=str(weather),
        columns=Columns(inputs="{text}", targets="{label}", labels=("wet", "dry")),
        inputs_length=128,
    )
    evaluation = Evaluation(loss=False, max_decode_length=4, few_shot=SHOWN, bootstrap=5)
    return dataclasses.replace(tiny_experiment, data=data, evaluation=evaluation)


def changed(experiment, *, data=None, parts=None, **evaluation):
    return dataclasses.replace(
        experiment,
        **(parts or {}),
        data=dataclasses.replace(experiment.data, **(data or {})),
        evaluation=dataclasses.replace(experiment.evaluation, **evaluation),
    )


PROMPTS = [
    "snow\nwet\n\nsand\ndry\n\nrain",
    "snow\nwet\n\nsand\ndry\n\nwind",
]


@pytest.mark.slow
def test_evaluate_writes_each_trial_and_the_spread(
    tiny_run, asked, tmp_path, capsys, caplog, compile_once
):
    caplog.set_level("INFO", logger="t5x_lite")
    found = {}
    for rank in (False, True):
        output = tmp_path / f"out{rank}"
        metrics = evaluate(changed(asked, rank=rank), [str(tiny_run)], output=str(output))
        assert list(metrics) == ["validation/accuracy", "validation/score"]
        content = json.loads((output / "metrics.json").read_text())
        shown = content["few_shot"]
        assert (shown["examples"], shown["split"]) == (2, "train")
        trials = shown["trials"]
        assert [(t["seed"], t["order"], t["template"]) for t in trials] == [
            (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0),
        ]  # fmt: skip
        values = [trial["metrics"]["accuracy"] for trial in trials]
        assert metrics["validation/accuracy"] == pytest.approx(sum(values) / 4)
        assert shown["spread"]["accuracy"]["min"] == min(values)
        assert set(shown["spread"]["accuracy"]) == {"mean", "min", "max", "std", "seeds", "orders"}
        lines = (output / "predictions.jsonl").read_text().splitlines()
        found[rank] = [json.loads(line) for line in lines]
        assert list(content["intervals"]) == ["validation/accuracy"]
    assert [line["inputs"] for line in found[True][:2]] == PROMPTS
    for line, other in zip(found[True], found[False], strict=True):
        assert {**line, "prediction": ""} == {**other, "prediction": ""}
        assert line["prediction"] in ("wet", "dry")
    first, second = (found[True][number : number + 2] for number in (0, 2))
    assert (first[0]["order"], second[0]["order"], first[0]["seed"]) == (0, 1, 0)
    for one, other in zip(first, second, strict=True):  # the same examples, the other way round
        *shown, question = one["inputs"].split("\n\n")
        assert other["inputs"].split("\n\n") == [*reversed(shown), question]
    assert len(found[True]) == 8
    tables = [told for told in caplog.messages if told.startswith("few-shot, 2 examples of")]
    assert len(tables) == 2
    assert tables[0].splitlines()[1].split()[-2:] == ["std", "wordings"]


@pytest.mark.slow
def test_none_is_what_evaluate_did_before(tiny_run, asked, tmp_path, capsys):
    plain = changed(asked, few_shot=FewShot())
    other = changed(asked, few_shot=FewShot(seeds=(3, 4), orders=5, separator="x"))
    files = []
    for number, experiment in enumerate((plain, other)):
        evaluate(experiment, [str(tiny_run)], output=str(tmp_path / str(number)))
        paths = sorted((tmp_path / str(number)).iterdir())
        files.append([path.read_text() for path in paths])
        names = ["classes.jsonl", "metrics.json", "predictions.jsonl"]
        assert [path.name for path in paths] == names
    assert files[0] == files[1]
    assert "few_shot" not in files[0][1]
    assert '"inputs": "rain"' in files[0][2]


def test_a_wording_alone_needs_no_training_split(tiny_run, asked, weather, tmp_path, capsys):
    (weather / "train.jsonl").unlink()
    wordings = FewShot(templates=("{inputs}: {targets}", r"Q: {inputs}\nA: {targets}"))
    evaluate(changed(asked, few_shot=wordings), [str(tiny_run)], output=str(tmp_path / "out"))
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    asked_as = [(line["template"], line["inputs"]) for line in map(json.loads, lines)]
    assert asked_as == [(0, "rain:"), (0, "wind:"), (1, "Q: rain\nA:"), (1, "Q: wind\nA:")]


def test_examples_that_do_not_fit_are_counted(tiny_run, asked, tmp_path, capsys, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    lines = ("classify: inputs_length=12",)
    evaluate(
        changed(asked, per_task=lines, few_shot=FewShot(examples=2)),
        [str(tiny_run)],
        output=str(tmp_path / "out"),
    )
    (trial,) = json.loads((tmp_path / "out" / "metrics.json").read_text())["few_shot"]["trials"]
    assert trial["prompts_cut"] == 2
    assert 2 <= trial["examples_left_out"] <= 4
    told = (
        "files_classify: removed examples from 2 of 2 prompts, because the prompts were longer "
        "than 12 tokens"
    )
    assert told in caplog.messages
    for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines():
        *shown, question = json.loads(line)["inputs"].split("\n\n")
        assert question in ("rain", "wind")
        assert len(shown) == json.loads(line)["examples"] < 2


@pytest.mark.parametrize("layout", [layouts.PrefixLM(), layouts.ConcatLM()])
@pytest.mark.parametrize("rank", [False, True])
def test_decoders_alone_are_asked_with_examples(asked, tiny_vocabulary, layout, rank):
    model = LMConfig(
        vocab_size=400, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=1,
        prefix=isinstance(layout, layouts.PrefixLM),
    )  # fmt: skip
    experiment = changed(
        asked,
        data={"layout": layout},
        parts={"model": model, "objective": LanguageModel()},
        rank=rank,
        few_shot=FewShot(examples=2),
    )
    learner = learner_of(experiment)
    made = Measurement(
        experiment,
        learner,
        load_vocabulary(tiny_vocabulary),
        mesh=make_mesh(MeshConfig()),
        workdir=None,
    )
    metrics = made(0, learner.init(jax.random.key(0)))
    assert list(metrics) == ["validation/accuracy", "validation/score"]
    (evaluator,) = made.evaluators.values()
    assert [sample.inputs for sample in evaluator.samples] == PROMPTS


def test_prompts_end_in_the_words_of_the_layout(asked, tiny_vocabulary):
    vocabulary = load_vocabulary(tiny_vocabulary)
    layout = layouts.PrefixLM(separator=" target:")
    experiment = changed(
        asked,
        data={"layout": layout},
        parts={"objective": LanguageModel()},
        few_shot=FewShot(examples=1),
    )
    prompts = ShownExamples(experiment, vocabulary).prompts("files_classify", experiment.data)
    [prompt] = prompts.of(experiment.evaluation.few_shot.trials[0], ["rain"])
    end = vocabulary.encode(" target:")
    assert prompt.tokens[-len(end) :].tolist() == end
    assert vocabulary.eos_id not in prompt.tokens


@pytest.mark.slow
def test_each_task_of_a_mixture_has_examples_of_its_own(
    tiny_run, asked, tiny_glue, tmp_path, capsys, caplog
):
    caplog.set_level("INFO", logger="t5x_lite")
    rte = tmp_path / "glue" / "RTE"
    rte.mkdir(parents=True)
    (tmp_path / "glue" / "SST-2").symlink_to(tiny_glue / "SST-2")
    header = "index\tsentence1\tsentence2\tlabel\n"
    row = "{}\ttext {}\tclaim\tentailment\n"
    for split, numbers in (("train", range(3)), ("dev", range(3, 5)), ("test", range(5, 7))):
        (rte / f"{split}.tsv").write_text(header + "".join(row.format(i, i) for i in numbers))
    mnli = tmp_path / "glue" / "MNLI"
    mnli.mkdir()
    columns = ("index", "sentence1", "sentence2", "gold_label")
    for place in ("dev_matched", "dev_mismatched"):
        (mnli / f"{place}.tsv").write_text("\t".join(columns) + "\n0\ta\tb\tneutral\n")
    experiment = changed(
        asked,
        data={
            "task": "tasks.mixtures:glue",
            "directory": str(tmp_path / "glue"),
            "inputs_length": 512,
        },
        per_task=(
            "sst2: max_examples=3, num_beams=2",
            "glue_rte: rank=True",
            "mnli_mismatched: examples_of='tasks.glue:rte'",
        ),
        bootstrap=0,
    )
    metrics = evaluate(experiment, [str(tiny_run)], output=str(tmp_path / "out"))
    content = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert set(content["few_shot"]["tasks"]) == {
        "glue_sst2",
        "glue_rte",
        "glue_mnli_mismatched",
    }
    spread = content["few_shot"]["spread"]["score"]
    assert spread["mean"] == pytest.approx(metrics["validation/score"])
    asked_of = {}
    for name in content["few_shot"]["tasks"]:
        lines = (tmp_path / "out" / "predictions" / f"{name}.jsonl").read_text().splitlines()
        asked_of[name] = [json.loads(line)["inputs"] for line in lines]
    assert [len(texts) for texts in asked_of.values()] == [12, 8, 4]
    assert all(text.count("sst2 sentence: ") == 3 for text in asked_of["glue_sst2"])
    assert all(text.count("rte sentence1: ") == 3 for text in asked_of["glue_rte"])
    assert all(text.count("rte sentence1: ") == 2 for text in asked_of["glue_mnli_mismatched"])
    without, _ = [told for told in caplog.messages if "task glue_mnli_matched" in told]
    assert without.startswith(
        "task glue_mnli_matched is not evaluated, because its few-shot prompts are not available: "
        "evaluation.few_shot: data.task "
        "'tasks.glue:mnli_matched' has no split 'train'"
    )
    assert [path.name for path in (tmp_path / "out" / "submission").rglob("*.tsv")] == ["RTE.tsv"]


def test_training_measures_the_mean(tiny_run, asked, tiny_vocabulary, tmp_path):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    made = Measurement(
        asked, loaded.learner, loaded.vocabulary, mesh=make_mesh(MeshConfig()), workdir=tmp_path
    )
    assert made.names(loaded.learner.shapes) == ["validation/accuracy", "validation/score"]
    made(5, loaded.params)
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["inputs"] == PROMPTS[0]
    assert json.loads(lines[0])["seed"] == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"examples": 5}, "examples is 5, but split 'train' of task f"),
        (
            {"examples": 4},
            "has only 3 different examples other than the question",
        ),  # "rain" is asked
        ({"examples": 1, "split": "dev"}, "evaluation.few_shot: data.task 'tasks.files:classify' "),
    ],
)
def test_too_few_examples_and_no_such_split(tiny_run, asked, config, message):
    with pytest.raises(InputError, match=message):
        evaluate(changed(asked, few_shot=FewShot(**config)), [str(tiny_run)])


def test_no_training_split(tiny_run, asked, weather):
    (weather / "train.jsonl").unlink()
    message = r"evaluation\.few_shot: data\.task 'tasks\.files:classify' has no split 'train'"
    with pytest.raises(InputError, match=message):
        evaluate(asked, [str(tiny_run)])


@pytest.mark.parametrize(
    ("layout", "reason"),
    [(layouts.Labelled(), "predicts by a head"), (layouts.LM(), "has no text targets")],
)
def test_layouts_without_questions_in_text(asked, layout, reason):
    objective = Classify(num_classes=2) if layout.answered_by_head else LanguageModel()
    experiment = changed(
        asked, data={"layout": layout, "pack": False}, parts={"objective": objective}
    )
    vocabulary = load_vocabulary(experiment.data.vocabulary)
    with pytest.raises(
        InputError,
        match=rf"^evaluation\.few_shot requires .*, but a model with data\.layout .* {reason};",
    ):
        ShownExamples(experiment, vocabulary)
    assert not ShownExamples(changed(experiment, few_shot=FewShot()), vocabulary).is_on
