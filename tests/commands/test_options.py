"""The checks that commands share, and the modules that run on Beam."""

import sys

import pytest

from t5x_lite.commands.command import load_driver, some_directory
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.options import OptionError


def test_no_directory_is_refused():
    some_directory(("work",))
    with pytest.raises(OptionError, match="--checkpoint needs at least one directory"):
        some_directory(())


@pytest.mark.parametrize("extras", ["c4,beam", "data,beam"])
def test_a_missing_beam_is_one_line_with_its_extras(monkeypatch, extras):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "t5x_lite.data.cache.making_beam", raising=False)
    with pytest.raises(InputError) as error:
        load_driver("t5x_lite.data.cache.making_beam", runner="FlinkRunner", extras=extras)
    assert str(error.value) == (
        "--runner FlinkRunner needs Apache Beam, which is missing; run "
        f"{install_command(*extras.split(','))}"
    )


def test_a_module_is_given():
    assert load_driver("t5x_lite.core.errors", runner="R", extras="beam").InputError is InputError
