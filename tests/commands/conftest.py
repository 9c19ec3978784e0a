"""What the tests of the commands share: a call of the command line whose function is a stand-in."""

import importlib
import sys
from collections.abc import Callable
from unittest import mock

import pytest

from t5x_lite.cli import main


@pytest.fixture
def check_call(monkeypatch) -> Callable[..., None]:
    """Runs a line and compares how the function of `run` is called.

    The stand-in has the function's signature, and so refuses what that does not take.
    """
    monkeypatch.setattr(sys, "path", list(sys.path))

    def check(line: str, function: str, args: tuple, kwargs: dict) -> None:
        module_name, _, name = function.partition(".")
        module = importlib.import_module(f"t5x_lite.run.{module_name}")
        stand_in = mock.create_autospec(getattr(module, name))
        monkeypatch.setattr(module, name, stand_in)
        assert main(line.split()) == 0
        stand_in.assert_called_once_with(*args, **kwargs)

    return check
