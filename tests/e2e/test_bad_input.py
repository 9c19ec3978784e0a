"""Bad input, through the command line: exit code 2, one clear line, nothing half-written."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.checkpoints.reading import saved_steps
from t5x_lite.cli import main
from t5x_lite.data.formats import tables
from t5x_lite.data.tasks import text_source

ROOT = Path(__file__).resolve().parents[2]
GOOD = '{"inputs": "a", "targets": "b"}\n'


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path, tiny_experiment):
    """An empty directory with tiny.json, the config of ten steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config.save(tiny_experiment, "tiny.json")


@pytest.fixture
def refused(capfd):
    """Runs a command line and returns its one line of complaint, without "error: "."""

    def run(line):
        before = content()
        capfd.readouterr()
        code = main(shlex.split(line))
        told = capfd.readouterr()
        assert (code, told.out) == (2, ""), told.err
        # A slow machine tells that the command still runs.
        [message] = [line for line in told.err.splitlines() if not line.endswith(" so far")]
        assert message.startswith("error: ")
        assert content() == before
        return message.removeprefix("error: ")

    return run


def content():
    """Everything below the current directory."""
    paths = sorted(Path().rglob("*"))
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture
def run(tiny_run):
    """A copy of the work directory of ten steps, as run/."""
    return shutil.copytree(tiny_run, "run")


def write(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


# The config.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.d-modle 8", "unknown option --model.d-modle; did you mean --model.d-model?"),
        ("--data.inputs-length 0", "data.inputs_length must be at least 1: got 0"),
        ("--data.targets-length 0", "data.targets_length must be at least 1: got 0"),
        ("--data.inputs-length -5", "data.inputs_length must be at least 1: got -5"),
        ("--data.batch-size 0", "data.batch_size must be at least 1: got 0"),
        ("--model.vocab-size 0", "model.vocab_size must be at least 1: got 0"),
        ("--data.task tasks.text:span_coruption", "did you mean span_corruption?"),
        (
            "--data.task tasks.txt:span_corruption",
            "module 'tasks.txt' does not exist; did you mean tasks.",
        ),
        (
            "--data.task tasks.text:TaskArguments",
            "a class, but must be a function; tasks.text has span_",
        ),
        (
            "--data.task tasks.text:source",
            "must take one TaskArguments, but takes (directory: str);",
        ),
        ("--data.task json:dumps", "failed (TypeError: Object of type TaskArguments is not JSON"),
        ("--data.task dataclasses:asdict", "must return a seqio.Task, but returned dict"),
        (
            "--data.task text",
            "data.task must be module:function, such as tasks.glue:sst2, got 'text'",
        ),
        ("--data.layout lm", "option --data.layout does not exist; set layout=layouts."),
        ("--data.negatives 3", "option --data.negatives was renamed to --data.layout.negatives"),
        ("--evaluation.split dev", "has no split 'dev'; its splits are train, validation"),
        (
            "--checkpoints.best validation/los",
            "'validation/los', but the evaluation has the metrics",
        ),
        ("--mesh.data 3", "needs 3 devices, but 1 are available; set one of --mesh.* to -1"),
    ],
)
@pytest.mark.slow
def test_a_wrong_config(refused, options, message):
    assert message in refused(f"train tiny.json --workdir w {options}")


def test_a_config_that_is_missing_or_unreadable(refused):
    assert refused("train tiny.jsn --workdir w").startswith("tiny.jsn does not exist")
    write("broken.json", "{\n  3\n}")
    assert refused("train broken.json --workdir w").startswith("broken.json:2: not JSON")
    write("old.json", Path("tiny.json").read_text().replace('"d_model"', '"d_modle"'))
    message = refused("train old.json --workdir w")
    assert message.endswith("T5Config has no field d_modle; did you mean d_model?")


# Text and labels.


def test_data_that_is_missing(refused):
    line = "train tiny.json --workdir w --data.directory"
    assert refused(f"{line} none").startswith("data.directory 'none' is not a directory")
    Path("empty").mkdir()
    kinds = "*.txt, *.jsonl, *.json, *.parquet or *.arrow"
    assert f"no {kinds} file to train on" in refused(f"{line} empty")
    assert "no SST-2/train.tsv" in refused(f"{line} empty --data.task tasks.glue:sst2")


@pytest.mark.parametrize("text", ["", "\n\n \n"])
def test_data_without_text(refused, text):
    write("text/a.txt", text)
    message = refused("train tiny.json --workdir w --data.directory text")
    assert message.endswith("found no example for split 'train' in text")


@pytest.mark.slow
def test_data_without_anything_to_validate(refused, english_lines):
    write("text/a.txt", "\n".join(english_lines[:50]))
    message = refused("train tiny.json --workdir w --data.directory text")
    assert message.endswith(
        "found no example for split 'validation' in text; --evaluation.split chooses another, and "
        "--evaluation.loss False trains without one"
    )


def test_a_line_that_is_not_utf8(refused):
    write("text/a.txt", b"one\ntwo\ncaf\xe9\n")
    message = refused("train tiny.json --workdir w --data.directory text")
    assert message == "text/a.txt:3: not UTF-8: convert it to UTF-8"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', "text/a.jsonl:2: not JSON (Expecting value at column 9)"),
        ('{"text": "a"}\n{"txt": "a"}\n', "text/a.jsonl:2: must have \"text\"; it has ['txt']"),
        ('{"text": 3}\n', 'text/a.jsonl:1: "text" must be a string, got int'),
    ],
)
def test_a_malformed_line_of_jsonl(refused, content, message):
    write("text/a.jsonl", content)
    line = "train tiny.json --workdir w --data.directory text"
    assert refused(line).startswith(message)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("dev.tsv", None, "cannot read glue/SST-2/dev.tsv: No such file or directory"),
        (
            "dev.tsv",
            "sentence\tlabel\n",
            "found no example for split 'validation' in glue; --evaluation.split chooses another",
        ),
        (
            "dev.tsv",
            "sentence\tlabel\ngood\t2\n",
            "SST-2/dev.tsv:2: column label is '2', but must be one of 0, 1",
        ),
        (
            "train.tsv",
            "sentence\tlabel\ngood\n",
            "SST-2/train.tsv:2: the line has 1 columns, but the header",
        ),
        ("train.tsv", b"sentence\tlabel\ncaf\xe9\t1\n", "SST-2/train.tsv:2: not UTF-8"),
    ],
)
@pytest.mark.slow
def test_wrong_files_of_a_task(refused, tiny_glue, file, content, message):
    """Those of the validation split too are found before anything is written."""
    shutil.copytree(tiny_glue, "glue")
    path = Path("glue", "SST-2", file)
    path.unlink() if content is None else write(path, content)
    line = "train tiny.json --workdir w --data.directory glue --data.task tasks.glue:sst2"
    assert message in refused(line)


@pytest.mark.exhaustive
def test_a_bad_line_far_into_the_text_stops_the_run_with_its_checkpoints(
    capfd, english_lines, tiny_run, monkeypatch
):
    lines = [line.encode() for line in english_lines[:200]] * 7  # over a window of examples
    write("text/a.txt", b"\n".join([*lines[:1300], b"caf\xe9", *lines[1300:]]))
    write("text/validation.txt", lines[0])
    line = (
        "train tiny.json --workdir w --data.directory text --steps 1000 --log-period 50 "
        "--evaluation.period 1000"
    )
    expected = "error: text/a.txt:1301: not UTF-8: convert it to UTF-8"
    assert main(line.split()) == 2  # text that fits into memory is read at the start
    assert capfd.readouterr().err.splitlines()[-1] == expected
    assert not Path("w/checkpoints").exists() or not saved_steps(Path("w/checkpoints"))
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)  # as of files that do not fit
    assert main([*line.split(), "--data.shuffle=False"]) == 2
    *progress, message = capfd.readouterr().err.splitlines()
    assert message == expected
    assert all(
        line.startswith(("step ", "model: ")) or " parameters on " in line for line in progress
    )
    assert saved_steps(Path("w/checkpoints"))[-1] >= 5


@pytest.mark.exhaustive
@pytest.mark.slow
def test_tensorflow_adds_nothing_to_the_one_line(run, english_lines, tiny_glue, compile_once):
    """In a process whose TF_CPP_MIN_LOG_LEVEL nobody has set but JAX, as a user's is."""
    far = [json.dumps({"text": line}) for line in english_lines[:200]] * 7
    write("far/a.jsonl", "\n".join([*far[:1300], "{", *far[1300:]]))
    write("far/validation.txt", "a line to validate on")
    write("malformed/a.jsonl", '{"text": "a"}\n{"text": \n')
    write("textless/a.jsonl", '{"txt": "a"}\n')
    write("latin/a.txt", b"one\ncaf\xe9\n")
    write("closed/a.txt", "one")
    write("held_out/train.txt", english_lines[0])
    write("held_out/validation.jsonl", "{")
    shutil.copytree(tiny_glue, "glue")
    write("glue/SST-2/train.tsv", "sentence\tlabel\ngood\n")
    train = "train tiny.json --workdir w --data.directory"
    expected = {
        f"{train} malformed": "malformed/a.jsonl:2: not JSON (Expecting value at column 9)",
        f"{train} textless": (
            "textless/a.jsonl:1: must have \"text\"; it has ['txt']; name the field of the text by "
            "--data.columns.inputs '{FIELD}'"
        ),
        f"{train} latin": "latin/a.txt:2: not UTF-8: convert it to UTF-8",
        f"{train} closed": "cannot read closed/a.txt: Permission denied",
        f"{train} glue --data.task tasks.glue:sst2": (
            "glue/SST-2/train.tsv:2: the line has 1 columns, but the header has 2"
        ),
        "evaluate tiny.json --checkpoint run --data.directory held_out": (
            "held_out/validation.jsonl:1: not JSON (Expecting property name enclosed in double "
            "quotes at column 2)"
        ),
        f"{train} far --data.shuffle=False --steps 1000 --log-period 1000 "
        "--evaluation.period 1000": (
            "far/a.jsonl:1301: not JSON (Expecting property name enclosed in double quotes at "
            "column 2)"
        ),
    }
    Path("closed/a.txt").chmod(0)
    if os.access("closed/a.txt", os.R_OK):  # root may read everything
        del expected[f"{train} closed"]
    program = (
        "import sys; from t5x_lite.cli import main\n"
        "from t5x_lite.data.tasks import text_source\n"
        "text_source.IN_MEMORY_BYTES = 0\n"  # as of files that do not fit
        "for line in sys.argv[1:]: print('exit code', main(line.split()), file=sys.stderr)\n"
    )
    environment = {**os.environ, **compile_once, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL")
    done = subprocess.run(
        [sys.executable, "-c", program, *expected], env=environment, capture_output=True, text=True
    )
    *told, rest = done.stderr.split("exit code 2\n")
    assert (done.stdout, rest) == ("", "")
    for line, message in zip(told, expected.values(), strict=True):
        *progress, error = line.splitlines()
        assert error == f"error: {message}"
        assert [
            p for p in progress if not re.search("parameters on|^step |^model: |so far$", p)
        ] == []
    assert len(told[-1].splitlines()) > 1


# The vocabulary.


def test_a_wrong_vocabulary(refused):
    line = "train tiny.json --workdir w --data.vocabulary"
    assert "No such file or directory; give a SentencePiece .model" in refused(f"{line} none")
    Path("empty").mkdir()
    assert "empty/sentencepiece.model: No such file" in refused(f"{line} empty")
    write("text.model", "no model")
    assert "vocabulary text.model is not a SentencePiece model" in refused(f"{line} text.model")


def test_a_vocabulary_that_is_larger_than_the_model_s(refused):
    message = refused("train tiny.json --workdir w --model.vocab-size 399")
    assert message.startswith("model.vocab_size 399 is smaller than the vocabulary")
    assert message.endswith("has 400 tokens with 100 extra ids; set --model.vocab-size")


def other_vocabulary(english_lines):
    """Trains one of the same size on other text; returns its path."""
    from t5x_lite.data.vocabularies.loading import train_sentencepiece

    return train_sentencepiece(english_lines[:300], size=300, output_dir="other")


# Weights and work directories.


@pytest.mark.slow
def test_initial_weights_that_do_not_fit(refused, run, english_lines):
    line = "train tiny.json --workdir w --init"
    assert refused(f"{line} none") == (
        "checkpoint none: no such directory; for a model of the Hugging Face Hub, run "
        "`t5x-lite import hf none work/none` and pass work/none instead"
    )
    message = refused(f"{line} run --model.d-ff 48")
    assert message.startswith("checkpoint run/checkpoints/10 does not fit the model: model/")
    assert message.endswith(
        " in the checkpoint, but (1, 16, 48) in the model; pass --model init to use the "
        "checkpoint's model family and sizes"
    )
    other = other_vocabulary(english_lines)
    message = refused(f"{line} run --data.vocabulary {other}")
    assert message.endswith(
        "differs from the vocabulary of checkpoint run/checkpoints/10; use --data.vocabulary "
        "run/checkpoints/10/files/vocabulary"
    )
    assert refused(f"{line} run --data.extra-ids 90") == (
        "data.extra_ids is 90, but 100 in checkpoint run/checkpoints/10; set --data.extra-ids 100"
    )


@pytest.mark.slow
def test_a_work_directory_of_another_experiment(refused, run):
    message = refused("train tiny.json --workdir run --steps 20 --seed 1 --model.d-ff 64")
    assert message == (
        "work directory run belongs to another experiment: "
        "model.d_ff is 32 in the saved config and 64 now, "
        "seed is 0 in the saved config and 1 now; use another --workdir or the same settings"
    )


@pytest.mark.slow
def test_a_work_directory_with_something_else_in_it(refused):
    write("home/letter.txt", "Dear")
    message = refused("train tiny.json --workdir home")
    assert message == "workdir home has other files but no config.json; use an empty directory"
    assert refused("train tiny.json --workdir tiny.json") == "workdir tiny.json is not a directory"
    message = refused("train tiny.json --workdir tiny.json/w")
    assert message == "workdir tiny.json/w cannot be written (Not a directory)"
    assert refused("train tiny.json") == "no work directory is set; pass --workdir DIR"


# evaluate, predict, score, vocab, report.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--checkpoint none", "checkpoint none: no such directory"),
        (
            "--checkpoint run run",
            "has no metrics, and a held-out loss is not supported for several checkpoints",
        ),
        ("--checkpoint run --step 7", "checkpoint run has no step 7; its steps are [5, 10]"),
        (
            "--checkpoint run --data.extra-ids 90",
            "differs from the vocabulary of the checkpoint run/",
        ),
        ("--checkpoint run --evaluation.split dev", "has no split 'dev'"),
        ("--checkpoint run --output tiny.json", "--output tiny.json is not a directory"),
        ("--checkpoint run --chekpoint b", "unknown option --chekpoint; did you mean --checkpoint"),
    ],
)
def test_evaluate(refused, run, line, message):
    assert message in refused(f"evaluate tiny.json {line}")


@pytest.mark.parametrize("command", ["predict", "score"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--checkpoint none --input in --output out", "checkpoint none: no such directory"),
        (
            "--checkpoint torn --input in --output out",
            "checkpoint torn is damaged (params/manifest.ocdbt is missing)",
        ),
        ("--checkpoint run --input no --output out", "no: cannot be read (No such file or dir"),
        ("--checkpoint run --input run --output out", "run: cannot be read (Is a directory)"),
        ("--checkpoint run --input bad --output out", "bad:2: not JSON (Expecting value at col"),
        ("--checkpoint run --input latin --output out", "latin:1: not UTF-8 (byte 15)"),
        ("--checkpoint run --input empty --output out", "input empty contains no line"),
        (
            "--checkpoint run --input in --output out --longest-line 31",
            "in:1: the line has more than 31 bytes; divide the line, or raise --longest-line",
        ),
        ("--checkpoint run --input in --output a/out", "a/out: cannot be written (No such file"),
        ("--checkpoint run --input in --output run", "run: cannot be written (Is a directory)"),
    ],
)
def test_predict_and_score(refused, run, command, line, message):
    write("in", GOOD)
    write("bad", GOOD + "bad")
    write("latin", b'{"inputs": "caf\xe9"}')
    write("empty", "")
    shutil.copytree("run/checkpoints/5", "torn")
    Path("torn/params/manifest.ocdbt").unlink()
    assert refused(f"{command} {line}").startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vocab --input no --output v --size 300", "no: No such file or directory"),
        ("vocab --input latin --output v --size 300", "latin:2: not UTF-8 (byte 0xe9"),
        ("vocab --input empty --output v --size 300", "a vocabulary cannot be trained on empty"),
        ("vocab --input short --output v --size 300", "too little text for 300 pieces; set --size"),
        ("report no", "no"),
    ],
)
def test_vocab_and_report(refused, line, message):
    write("latin", b"one\ncaf\xe9\n")
    write("empty", "")
    write("short", "only a few words\n")
    assert refused(line).startswith(message)


@pytest.mark.slow
def test_a_batch_that_eight_devices_cannot_share(run, tiny_experiment):
    """Training and evaluate, in a process of eight devices."""
    program = (
        "import sys; from t5x_lite.cli import main\n"
        "from t5x_lite.data.tasks import text_source\n"
        "text_source.IN_MEMORY_BYTES = 0\n"  # as of files that do not fit
        "for line in sys.argv[1:]: print(main(line.split()), file=sys.stderr)\n"
    )
    lines = ["train tiny.json --workdir w", "evaluate tiny.json --checkpoint run"]
    done = subprocess.run(
        [sys.executable, "-c", program, *lines],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
    )
    message = (
        "error: data.batch_size 4 is not divisible by the 8 devices that share a batch (mesh "
        "{'replica': 1, 'data': 8, 'fsdp': 1, 'sequence': 1, 'tensor': 1}); change "
        "--data.batch-size or --mesh.*"
    )
    assert done.stderr.splitlines() == [message, "2", message, "2"]
    assert not Path("w").exists()


# Unlabelled documents.


@pytest.fixture
def documents():
    """c/ and t/ have Parquet without a column text, g/ a truncated gzip, m/ mC4, e/ nothing."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for name in ("c", "g", "m", "t", "e"):
        Path(name).mkdir()
    pq.write_table(pa.table({"url": ["u"], "body": ["words"]}), "c/a.parquet")
    lines = "\n".join(json.dumps({"text": f"page {i} " + "x" * i}) for i in range(99)).encode()
    write("g/c4-train.00000-of-00001.json.gz", gzip.compress(lines)[:-40])
    for split in ("af", "af-validation", "de"):
        write(f"m/c4-{split}.tfrecord-00000-of-00001.json.gz", gzip.compress(lines))
    pq.write_table(pa.table({"text": ["one"] * 9}), "t/a.parquet")
    pq.write_table(pa.table({"content": ["two"]}), "t/b.parquet")
    write("e/a.json.gz", b"")


PLACES = [
    ("c", "c/a.parquet has no column 'text', but only url, body; name the column"),
    ("t", "t/b.parquet has no column 'text', but only content; name the column"),
    ("g", "g/c4-train.00000-of-00001.json.gz: the file is truncated"),
    ("m", "m has the languages af, de; choose languages by --data.languages"),
    ("no/such/*.parquet", "no/such/*.parquet: no file matches"),
    ("hf://own/pages", "hf://own/pages needs the package datasets, which is not installed"),
    ("tfds://no_such_data", "TFDS has no no_such_data in its default directory"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "message"), PLACES)
def test_documents_that_cannot_be_read(refused, documents, monkeypatch, place, message):
    """The same line from `train` and from the commands, but for options that these do not have."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr(tables, "_hub", {})
    train = "train tiny.json --workdir w --data.task tasks.text:span_corruption --data.directory"
    assert message in refused(f"{train} '{place}'")
    message = message.replace(
        "choose languages by --data.languages", "name the shards of one language, such as"
    )
    assert message in refused(f"vocab --input '{place}' --output v --size 200")
    pairs = f"pairs --input '{place}' --output p.jsonl --rule sentences"
    if not place.startswith("c") and place != "t":  # pairs reads whole objects, without a column
        assert message in refused(pairs)


@pytest.mark.slow
def test_documents_that_are_empty_and_languages_that_are_absent(refused, documents):
    task = "--workdir w --data.task tasks.c4:c4_v220_span_corruption --data.directory"
    message = refused(f"train tiny.json {task} e")
    assert message.startswith("data.task 'tasks.c4:c4_v220_span_corruption' found no example")
    assert "trained on empty text" in refused("vocab --input e --output v --size 200")
    message = refused(f"train tiny.json {task} m --data.languages af fr")
    assert message.endswith("m has no language 'fr'; its languages are af, de")
    message = refused("cache tiny.json --output w --data.directory m --data.task "
                      "tasks.c4:c4_v220_span_corruption --data.languages sw")  # fmt: skip
    assert message.endswith("m has no language 'sw'; its languages are af, de")
