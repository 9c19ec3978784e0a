"""extend: the options that reach `run`."""

import pytest


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("", {}),
        (
            "--new-rows random --seed 3 --step best",
            {"new_rows": "random", "seed": 3, "step": "best"},
        ),
    ],
)
def test_extend_s_options_reach_run(check_call, options, changed):
    usual = {"positions": 8192, "new_rows": "repeat", "seed": 0, "step": None}
    check_call(
        f"extend s d --positions 8192 {options}",
        "extending.extend",
        ("s", "d"),
        {**usual, **changed},
    )
