"""Tests of the remembered command line."""

import sys

from t5x_lite.invocation import command, invoked_as


def test_a_command_is_remembered_while_it_runs(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["my script.py", "--fast"])
    with invoked_as(["train", "c.py", "--data.prefix", "a b"]):
        assert command() == "t5x-lite train c.py --data.prefix 'a b'"
    assert command() == "'my script.py' --fast"
