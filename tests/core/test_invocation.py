"""Tests of the remembered command line."""

import shlex
import sys

import pytest

from t5x_lite.core.errors import command, invoked_as, quoted


def test_a_command_is_remembered_while_it_runs(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["my script.py", "--fast"])
    with invoked_as(["train", "c.py", "--data.prefix", "a b"]):
        assert command() == "t5x-lite train c.py --data.prefix 'a b'"
    assert command() == "'my script.py' --fast"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("a b", "'a b'"),
        ("m = lora(sites=('mlp/.*',))", "\"m = lora(sites=('mlp/.*',))\""),
        ("it's $5", "'it'\"'\"'s $5'"),
        ("plain", "plain"),
    ],
)
def test_words_of_a_shell(word, shown):
    assert quoted(word) == shown
    assert shlex.split(shown) == [word]
