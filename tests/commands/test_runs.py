"""report and plan: the options that reach `run`; train and evaluate are in tests/test_cli.py."""

from unittest import mock

import pytest


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            "plan configs/tiny_pretrain.py --topology v5e:4x4",
            "planning.plan",
            (mock.ANY,),
            {
                "topology": "v5e:4x4",
                "devices": None,
                "as_json": False,
                "hbm": None,
                "operations": 0,
                "attached": False,
            },
        ),
        (
            "plan configs/tiny_pretrain.py --devices cpu:8 --json --hbm 2 --operations 5 "
            "--microbatches 2",
            "planning.plan",
            (mock.ANY,),
            {
                "topology": None,
                "devices": "cpu:8",
                "as_json": True,
                "hbm": 2.0,
                "operations": 5,
                "attached": False,
            },
        ),
        ("report w", "texts.report", ("w",), {"output": None}),
        ("report w --output page.html", "texts.report", ("w",), {"output": "page.html"}),
    ],
)
def test_options_reach_run(check_call, line, function, args, kwargs):
    check_call(line, function, args, kwargs)
