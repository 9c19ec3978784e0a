"""Which tasks of a mixture are there, and the error that names all of those that are not."""

import dataclasses
import importlib.util
import shutil

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("seqio") is None, reason="needs the extra data"
)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


def glue(directory, *leave_out):
    return Data(
        task="tasks.mixtures:glue",
        vocabulary="",
        directory=str(directory),
        mixing=Mixing(leave_out=leave_out),
    )


def test_all_missing_tasks_are_named_with_the_option_that_leaves_them_out(
    vocabulary, tiny_glue, tmp_path
):
    from t5x_lite.data import loading

    shutil.copytree(tiny_glue / "SST-2", tmp_path / "SST-2")
    shutil.copytree(tiny_glue / "SST-2", tmp_path / "RTE")
    (tmp_path / "RTE" / "train.tsv").unlink()
    absent = "glue_mrpc glue_qqp glue_stsb glue_mnli glue_qnli glue_rte"
    with pytest.raises(InputError) as raised:
        loading.trained_members(glue(tmp_path, "cola", "wnli"), vocabulary)
    message = str(raised.value)
    named, reason = message.split("; the first: ")
    assert named == ("6 tasks of tasks.mixtures:glue have no data: " + absent.replace(" ", ", "))
    assert reason.startswith("no MRPC/train.tsv in data.directory ")
    option, _, rest = reason.partition("--data.mixing.leave-out ")[2].partition(" trains ")
    assert (option, rest) == (f"cola wnli {absent}", "without them")
    left = loading.trained_members(glue(tmp_path, *option.split()), vocabulary)
    assert [one.member.name for one in left] == ["glue_sst2"]


def test_one_missing_file_is_named_with_its_reason(vocabulary, tiny_glue, tmp_path):
    from t5x_lite.data import loading

    shutil.copytree(tiny_glue / "SST-2", tmp_path / "SST-2")
    others = ("cola", "mrpc", "qqp", "stsb", "mnli", "qnli")
    with pytest.raises(InputError, match=r"^no RTE/train\.tsv .*leave-out cola mrpc .* glue_rte "):
        loading.trained_members(glue(tmp_path, *others), vocabulary)


def test_tasks_that_are_not_there_have_reasons(vocabulary, tiny_glue, tmp_path):
    from t5x_lite.data import loading

    shutil.copytree(tiny_glue / "SST-2", tmp_path / "SST-2")
    found = loading.members(glue(tmp_path), vocabulary)
    assert [one.member.name for one in found.present] == ["glue_sst2"]
    assert found.absent["glue_ax"].startswith("no diagnostic/diagnostic.tsv in data.directory ")
    with pytest.raises(InputError, match=r"no task of the mixture tasks\.mixtures:glue has data"):
        loading.members(glue(tmp_path / "nowhere"), vocabulary)
    single = dataclasses.replace(glue(tmp_path), task="tasks.glue:sst2")
    with pytest.raises(InputError, match="is a single task, but must be a mixture"):
        loading.members(single, vocabulary)


def test_what_comes_of_an_absent_file():
    from t5x_lite.data import loading

    outer = InputError("no such file")
    assert not loading.is_absent(outer)
    outer.__cause__ = FileNotFoundError("x")
    assert loading.is_absent(outer)
    assert not loading.is_absent(None)
