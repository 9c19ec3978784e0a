"""Tests of the report: files in, a page out."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.report.runs import write_report

VOID = {"meta", "input", "br"}


class Outline(HTMLParser):
    """Collects a page's text, tags and attributes, and checks that its tags are balanced."""

    def __init__(self, page):
        super().__init__()
        self.words, self.tags, self.attributes, self.open = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def write_run(directory, *, metrics="", config=None, samples=None):
    directory.mkdir(exist_ok=True)
    (directory / "metrics.jsonl").write_text(metrics, encoding="utf-8")
    if config is not None:
        (directory / "config.json").write_text(config, encoding="utf-8")
    if samples is not None:
        lines = [json.dumps(sample) for sample in samples]
        (directory / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def report(directory):
    page = write_report(directory).read_text(encoding="utf-8")
    return page, Outline(page)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_whole_run(tmp_path):
    run = write_run(
        tmp_path / "run",
        metrics=lines(
            {"step": 1, "time": 1.0, "loss": 9.5, "num_parameters": 11234816},
            {"step": 50, "loss": 4.5, "learning_rate": 0.01, "tokens_per_second": 2000.0}
            | {"steps_per_second": 2.0},
            {"step": 50, "validation/loss": 5.25, "validation/accuracy": 0.5},
            {"step": 100, "loss": 4.25, "learning_rate": 0.005, "tokens_per_second": 4000.0}
            | {"steps_per_second": 2.0},
            {"step": 100, "validation/loss": 5.125, "validation/accuracy": 0.25},
        ),
        config='{"steps": 400, "model": {"d_model": 256}}',
        samples=[
            {"step": 50, "inputs": "old", "targets": "a", "prediction": "a"},
            {"step": 100, "inputs": "is it?", "targets": "yes", "prediction": "no"},
            {"step": 100, "inputs": "was it?", "targets": "yes", "prediction": "yes"},
        ],
    )
    path = write_report(run)
    assert path == run / "report.html"
    assert sorted(file.name for file in run.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "report.html",
        "samples.jsonl",
    ]
    page = path.read_text(encoding="utf-8")
    outline = Outline(page)
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)(?:<small>.*?)?</dd>", page))
    assert facts == {
        "Last step": "100",
        "Training loss": "4.25",
        "Best validation loss": "5.125",
        "Best validation accuracy": "0.5",
        "Training time": "0:00:50",
        "Tokens per second": "3,000",
        "Tokens seen": "150k",
        "Parameters": "11.23M",
    }
    charts = re.findall(r"<h3>(.*?)</h3>", page)
    assert charts == ["Loss", "Accuracy", "Learning rate", "Tokens per second"]
    assert "step 50: validation 5.25" in outline.text
    assert "--model.d-model 256" in outline.text
    assert "Step 100: 2 samples, 1 differ from their targets." in outline.text
    assert "old" not in outline.words
    assert page.count("<tr class=differs>") == 1
    assert "Warnings" not in page


def facts_of(directory, config=None, **metrics):
    """The tiles of a run that measured each metric at steps 300, 600 and 900."""
    records = [
        {"step": step, **{f"validation/{name}": values[i] for name, values in metrics.items()}}
        for i, step in enumerate((300, 600, 900))
    ]
    page, outline = report(write_run(directory, metrics=lines(*records), config=config))
    tiles = re.findall(r"<dt>Best (.*?)</dt><dd>(.*?)<small>(.*?)</small></dd>", page)
    return [" ".join(tile) for tile in tiles], re.findall(r"<h3>(.*?)</h3>", page), outline


def test_of_a_cross_entropy_the_lowest_is_best(tmp_path):
    tiles, _, outline = facts_of(
        tmp_path / "run",
        cross_entropy=[0.5472, 0.31, 0.2751],
        token_accuracy=[0.5, 0.7, 0.6],
        accuracy=[0.25, 0.75, 0.75],
        score=[0.25, 0.75, 0.75],
    )
    assert tiles == [
        "validation accuracy 0.75 at step 900",
        "validation cross entropy 0.2751 at step 900",
    ]
    row = outline.words.index("validation/cross_entropy")
    assert outline.words[row : row + 5] == [
        "validation/cross_entropy", "0.2751", "900", "0.2751", "900"
    ]  # fmt: skip


def test_the_task_s_metric_has_a_tile(tmp_path):
    measured = {"loss": [1.0, 2.0, 3.0], "token_accuracy": [0.5, 0.7, 0.6]}
    tiles, charts, _ = facts_of(tmp_path / "a", **measured)
    assert tiles[1] == "validation token accuracy 0.7 at step 600"
    alone = {"f1": [0.25, 0.5, 0.125], "score": [0.25, 0.5, 0.125]}
    tiles, charts, _ = facts_of(tmp_path / "b", **measured, **alone)
    assert tiles == ["validation f1 0.5 at step 600", "validation loss 1 at step 300"]
    assert charts == ["F1", "Loss", "Token accuracy"]  # the score is the same curve
    two = {"exact_match": [0.25, 0.5, 0.125], "f1": [0.5, 0.5, 0.5], "score": [0.375, 0.5, 0.3125]}
    tiles, charts, _ = facts_of(tmp_path / "c", **measured, **two)
    assert tiles[0] == "validation score 0.5 at step 600"
    assert "Score" in charts
    config = '{"checkpoints": {"best": "validation/f1", "best_mode": null}}'
    tiles, _, _ = facts_of(tmp_path / "d", config, **measured, **two)
    assert tiles[0] == "validation f1 0.5 at step 900"  # the last of equals, which stays


def test_the_config_may_say_that_the_lowest_is_best(tmp_path):
    distance = {"edit_distance": [3.0, 1.0, 2.0]}
    tiles, _, _ = facts_of(tmp_path / "a", **distance)
    assert tiles == ["validation edit distance 3 at step 300"]
    config = '{"checkpoints": {"best": "validation/edit_distance", "best_mode": "min"}}'
    tiles, _, _ = facts_of(tmp_path / "b", config, **distance)
    assert tiles == ["validation edit distance 1 at step 600"]


def test_title_command_and_versions(tmp_path):
    run = write_run(
        tmp_path / "sst2",
        metrics=lines({"step": 1, "loss": 2.0, "goodput": 0.5, "lost_to_data": 0.25}),
        config=json.dumps(
            {
                "type": "t5x_lite.config.experiment:Experiment",
                "data": {"type": "t5x_lite.data.config:Data", "task": "tasks.glue:sst2"},
                "model": {"type": "t5x_lite.models.t5:T5Config"},
                "init": {"checkpoint": "work/pretrain"},
            }
        ),
    )
    commands = ["t5x-lite train a.py", "t5x-lite train a.py --steps 9"]
    starts = [
        {"command": each, "versions": {"jax": "0.10"}, "devices": "1 cpu"} for each in commands
    ]
    (run / "run.json").write_text(json.dumps({"starts": starts}))
    page, outline = report(run)
    assert "<h1>sst2: tasks.glue:sst2</h1>" in page
    assert "Training report. T5Config, from work/pretrain, written 2" in page
    words = "<span>t5x-lite train a.py</span> <span>--steps 9</span>"
    assert f'<pre class="command">{words}</pre>' in page
    assert "t5x-lite train a.py" in outline.words
    assert outline.words[outline.words.index("jax") + 1] == "0.10"
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Curves", "Speed and time"]
    assert "step 1: data 0.25" in outline.text


def test_a_task_of_a_mixture_is_named_in_its_headings(tmp_path):
    names = {"glue_stsb/pearson_corrcoef": 0.5, "glue_rte/accuracy": 0.25, "score": 0.375}
    record = {"step": 1, **{f"validation/{name}": value for name, value in names.items()}}
    page, _ = report(write_run(tmp_path / "run", metrics=lines(record)))
    headings = re.findall(r"<h3>(.*?)</h3>", page)
    assert headings == ["Score", "glue_rte: accuracy", "glue_stsb: pearson corrcoef"]


def test_the_page_needs_no_network_and_no_script(tmp_path):
    page, outline = report(write_run(tmp_path / "run", metrics=lines({"step": 1, "loss": 2.0})))
    assert not {"script", "link", "img", "iframe", "object"} & set(outline.tags)
    assert not {"src", "href", "srcset"} & {name for name, _ in outline.attributes}
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_everything_is_escaped(tmp_path):
    evil = "<script>alert('&\"')</script>"
    samples = [{"step": 1, "inputs": evil, "targets": evil, "prediction": evil + "\ud800"}]
    run = write_run(
        tmp_path / "<b>run",
        metrics=lines({"step": 1, f"validation/{evil}": 1.0, f"{evil}/loss": None, evil: 2.0}),
        config=json.dumps({"task": evil}),
        samples=samples,
    )
    page, outline = report(run)
    assert "<script" not in page
    assert "<b>" not in page
    assert not {"script", "b"} & set(outline.tags)


def test_not_finite_steps_and_restarts_are_warned_of(tmp_path):
    metrics = lines(
        {"step": 10, "loss": 3.0},
        {"step": 20, "loss": 2.0},
        {"step": 20, "validation/loss": 2.5},
        {"step": 30, "loss": 1.5},
        {"step": 20, "loss": 2.25},
        {"step": 30, "loss": None},
        {"step": 40, "loss": 1.0},
        {"step": 40, "loss": 1.125},
    )
    _, outline = report(write_run(tmp_path / "run", metrics=metrics))
    assert "loss was not a finite number at step 30." in outline.words
    assert "The run was restarted: step 30 was followed by step 20." in outline.words
    assert "The run was restarted: step 40 was followed by step 40." in outline.words
    tips = [word for word in outline.words if word.startswith("step ") and "training" in word]
    assert tips[:3] == [
        "step 10: training 3",
        "step 20: training 2.25",
        "step 40: training 1.125",
    ]


def test_a_partial_last_line_is_left_out(tmp_path):
    run = write_run(tmp_path / "run", metrics='{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    (run / "samples.jsonl").write_bytes(b'{"step": 1, "inputs": "\xc3')
    _, outline = report(run)
    assert "The last line of metrics.jsonl is incomplete and was ignored." in outline.words
    assert "step 1: training 2" in outline.words


def test_nothing_was_logged_yet(tmp_path):
    _, outline = report(write_run(tmp_path / "run"))
    assert "No metrics were logged yet." in outline.words
    assert "svg" not in outline.tags


@pytest.mark.parametrize("value", ["null", "NaN", "1e999", "-1e308", "1" + "0" * 400])
def test_values_that_cannot_be_drawn(tmp_path, value):
    _, outline = report(write_run(tmp_path / "run", metrics=f'{{"step": 7, "loss": {value}}}\n'))
    assert "loss was not a finite number at step 7." in outline.words
    assert "svg" not in outline.tags


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ('{"step": 1}\n{"step": \n{"step": 3}\n', "metrics.jsonl:2 is not a line of JSON"),
        ('{"step": 1}\nhello\n', "metrics.jsonl:2 is not a line of JSON"),
        ("[1]\n", "metrics.jsonl:1 is not a JSON object"),
        ('{"loss": 1.0}\n', 'metrics.jsonl:1: "step" must be an integer'),
        ('{"step": 1.5}\n', 'metrics.jsonl:1: "step" must be an integer'),
        ('\n{"step": 1, "loss": "low"}\n', 'metrics.jsonl:2: "loss" must be a number or null'),
    ],
)
def test_malformed_lines_are_named(tmp_path, metrics, message):
    run = write_run(tmp_path / "run", metrics=metrics)
    with pytest.raises(InputError) as error:
        write_report(run)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (run / "report.html").exists()


def test_other_bad_input(tmp_path):
    with pytest.raises(InputError, match="nowhere is not a directory"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"metrics\.jsonl is missing"):
        write_report(tmp_path)
    run = write_run(tmp_path / "run", metrics=lines({"step": 1, "loss": 1.0}))
    for output in (run / "none" / "a.html", run / "metrics.jsonl" / "a.html", run):
        with pytest.raises(InputError, match="cannot be written"):
            write_report(run, output)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    (run / "samples.jsonl").write_text('{"step": 1, "inputs": "a", "targets": "b"}\n')
    with pytest.raises(InputError, match=r"samples\.jsonl:1: the field 'prediction' is missing"):
        write_report(run)
    (run / "config.json").write_text('{\n"steps": }')
    with pytest.raises(InputError, match=r"config\.json:2 is not JSON"):
        write_report(run)


def test_output_elsewhere_replaces_the_old_page(tmp_path):
    run = write_run(tmp_path / "run", metrics=lines({"step": 1, "loss": 1.0}))
    output = tmp_path / "page.html"
    output.write_text("old")
    assert write_report(str(run), str(output)) == output
    assert output.read_text().startswith("<!doctype html>")
    assert not (run / "report.html").exists()


def test_output_through_a_link_and_into_a_pipe(tmp_path):
    run = write_run(tmp_path / "run", metrics=lines({"step": 1, "loss": 1.0}))
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "page.html")
    assert write_report(run, link) == link
    assert link.is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert write_report(run, os.devnull) == Path(os.devnull)
    assert not Path(os.devnull).is_file()


CLASSES = {
    "step": 50,
    "task": "glue_<sst2>",
    "classes": {"negative": {"precision": 1, "recall": 0.5, "f1": 0.25, "support": 1200}},
    "averages": {"macro average": {"precision": 1, "recall": 0.5, "f1": 0.25, "support": 1200}},
    "confusion": [[1000, 200]],
}


def test_the_newest_scores_of_classes_are_shown(tmp_path):
    run = write_run(tmp_path / "run", metrics=lines({"step": 100, "validation/accuracy": 0.5}))
    older = {**CLASSES, "step": 10, "confusion": [[77, 1]]}
    (run / "classes.jsonl").write_text(lines(older, CLASSES) + '{"step": 100, "ta')
    page, outline = report(run)
    assert "glue_<sst2> at step 50" in outline.text
    at = outline.words.index("negative")
    assert outline.words[at : at + 5] == ["negative", "1.0000", "0.5000", "0.2500", "1,200"]
    assert "target, predicted: negative other negative 1,000 200" in outline.text
    assert ">77<" not in page


@pytest.mark.parametrize(
    "changes", [{"classes": 3}, {"confusion": [3]}, {"averages": {"a": {}}}, {"step": "a"}]
)
def test_damaged_scores_of_classes_are_named(tmp_path, changes):
    run = write_run(tmp_path / "run", metrics=lines({"step": 1, "loss": 1.0}))
    (run / "classes.jsonl").write_text(lines({**CLASSES, **changes}))
    with pytest.raises(InputError, match=r"classes\.jsonl:1: .*repair or remove the line"):
        write_report(run)
