"""Work directories: whose they are, and those that are in a bucket."""

import errno
import fcntl
import json
import os

import pytest

from t5x_lite import config
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import open_path
from t5x_lite.data.vocabularies.byte_level import read_spm
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.train.restoring import WorkDirectory, holds_another
from tests.fake_bucket import bucket  # noqa: F401 (a fixture)
from tests.tokenizer_files import write_spm


@pytest.fixture
def vocabulary(tiny_experiment):
    return load_vocabulary(tiny_experiment.data.vocabulary)


def test_a_directory_of_this_machine(tmp_path, tiny_experiment, vocabulary):
    with WorkDirectory.open(str(tmp_path / "run")) as workdir:
        assert workdir.local == workdir.path == tmp_path / "run"
        workdir.check(tiny_experiment)
        workdir.check_vocabulary(vocabulary)
        assert not (tmp_path / "run").exists()
        workdir.write(tiny_experiment, vocabulary)
        workdir.copy()
        workdir.check(tiny_experiment)
    assert config.load(tmp_path / "run" / "config.json") == tiny_experiment
    saved = tmp_path / "run" / "vocabulary" / "sentencepiece.model"
    assert saved.read_bytes() == vocabulary.files()["sentencepiece.model"]
    assert not holds_another(saved.parent, vocabulary)
    saved.write_bytes(b"other")
    with pytest.raises(InputError, match="was created with a vocabulary that differs from"):
        workdir.check_vocabulary(vocabulary)


def test_a_run_goes_on_with_the_spm_model_as_it_was_read(tmp_path, tiny_experiment, english_lines):
    spm = write_spm(tmp_path, english_lines)
    earlier, now = read_spm(spm, compose=False), read_spm(spm)
    assert earlier.digest != now.digest
    for vocabulary in (earlier, now):
        with WorkDirectory.open(str(tmp_path / vocabulary.digest)) as workdir:
            workdir.check(tiny_experiment)
            assert workdir.check_vocabulary(now) is now
            workdir.write(tiny_experiment, vocabulary)
            assert workdir.check_vocabulary(now).digest == vocabulary.digest
    write_spm(tmp_path, english_lines, size=290)
    with (
        WorkDirectory.open(str(tmp_path / earlier.digest)) as workdir,
        pytest.raises(InputError, match="was created with a vocabulary that differs from"),
    ):
        workdir.check_vocabulary(read_spm(spm))


def test_two_runs_do_not_share_a_directory(tmp_path, tiny_experiment, vocabulary):
    first, second = (WorkDirectory.open(str(tmp_path / "run")) for _ in range(2))
    with second as other:
        other.check(tiny_experiment)  # both find it new
        with first as workdir:
            workdir.check(tiny_experiment)
            workdir.write(tiny_experiment, vocabulary)
            for refused in (other.check, lambda experiment: other.write(experiment, vocabulary)):
                with pytest.raises(InputError, match="run is in use by another training process"):
                    refused(tiny_experiment)
            workdir.check(tiny_experiment)
        other.check(tiny_experiment)  # the first has ended


def test_where_there_are_no_locks_there_are_none(tmp_path, tiny_experiment, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", flock)
    with WorkDirectory.open(str(tmp_path)) as workdir:
        workdir.check(tiny_experiment)


def test_a_config_that_is_not_utf8(tmp_path, tiny_experiment):
    (tmp_path / "config.json").write_bytes(b'{"\xff"}')
    with (
        pytest.raises(InputError, match=r"config\.json cannot be read: 'utf-8' codec"),
        WorkDirectory.open(str(tmp_path)) as work,
    ):
        work.check(tiny_experiment)


def test_what_is_no_work_directory(tmp_path, tiny_experiment, vocabulary):
    (tmp_path / "file").write_text("")
    for path, message in (
        ("", "no work directory is set"),
        (str(tmp_path / "file"), "file is not a directory"),
        (str(tmp_path), r"has other files but no config\.json"),
    ):
        with (
            pytest.raises(InputError, match=message),
            WorkDirectory.open(path) as workdir,
        ):
            workdir.check(tiny_experiment)
    with (
        pytest.raises(InputError, match=r"file/run cannot be written \(Not a directory\)"),
        WorkDirectory.open(str(tmp_path / "file" / "run")) as workdir,
    ):
        workdir.write(tiny_experiment, vocabulary)


def test_a_bucket_gets_what_is_appended_to_at_every_copy(
    bucket,  # noqa: F811
    tiny_experiment,
    vocabulary,
):
    with WorkDirectory.open("gs://bucket/run") as workdir:
        workdir.check(tiny_experiment)
        workdir.write(tiny_experiment, vocabulary)
        workdir.check_vocabulary(vocabulary)
        with (workdir.local / "metrics.jsonl").open("a") as file:
            file.write("1\n")
        (workdir.local / "tensorboard").mkdir()
        (workdir.local / "tensorboard" / "events").write_bytes(b"e")
        workdir.copy()
        assert (bucket / "run" / "metrics.jsonl").read_text() == "1\n"
        assert (bucket / "run" / "tensorboard" / "events").read_bytes() == b"e"
        (bucket / "run" / "tensorboard" / "events").unlink()  # not copied again: it is unchanged
        with (workdir.local / "metrics.jsonl").open("a") as file:
            file.write("2\n")
    assert (bucket / "run" / "metrics.jsonl").read_text() == "1\n2\n"
    assert not (bucket / "run" / "tensorboard" / "events").exists()
    assert not workdir.local.exists()
    assert json.loads((bucket / "run" / "config.json").read_text())["steps"] == 10
    with WorkDirectory.open("gs://bucket/run") as workdir:
        workdir.check(tiny_experiment)
        assert (workdir.local / "metrics.jsonl").read_text() == "1\n2\n"


def test_a_bucket_that_fails_gets_the_files_at_the_next_copy(
    bucket,  # noqa: F811
    monkeypatch,
    caplog,
):
    where = type(open_path("gs://bucket/run"))

    def fail(path, content):
        raise ConnectionError(f"503 for {path.name}")

    with WorkDirectory.open("gs://bucket/run") as workdir:
        (workdir.local / "metrics.jsonl").write_bytes(b"{}\n")
        with monkeypatch.context() as failing:
            failing.setattr(where, "write_bytes", fail)
            workdir.copy()
        assert "metrics.jsonl could not be written (503 for metrics.jsonl)" in caplog.text
        workdir.copy()
        assert (bucket / "run" / "metrics.jsonl").read_bytes() == b"{}\n"
    monkeypatch.setattr(where, "write_bytes", fail)

    def run(error):
        with WorkDirectory.open("gs://bucket/other") as opened:
            (opened.local / "metrics.jsonl").write_bytes(b"{}\n")
            if error is not None:
                raise error

    for error, raised in ((None, RuntimeError), (KeyError(), KeyError)):
        with pytest.raises(raised):  # the run's own error is not hidden
            run(error)


@pytest.mark.parametrize(("said", "is_another"), [({}, False), ({"do_lower_case": False}, True)])
def test_a_vocab_txt_alone_is_the_imported_one_if_its_ids_are(tmp_path, said, is_another):
    pieces = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"]) + "\n"
    for name in ("alone", "imported"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text(pieces)
    config = {"do_lower_case": True, "tokenize_chinese_chars": True, **said}
    (tmp_path / "imported" / "tokenizer_config.json").write_text(json.dumps(config))
    Tokenizer(tmp_path / "imported" / "vocab.txt").save(tmp_path / "saved")
    alone = Tokenizer(tmp_path / "alone" / "vocab.txt")
    assert holds_another(tmp_path / "saved", alone) == is_another
