"""The names of runners, and what Beam says of its options."""

import pytest

from t5x_lite.core.errors import InputError

pytest.importorskip("apache_beam")


@pytest.mark.parametrize(
    ("runner", "options", "told"),
    [
        ("NoSuchRunner", [], "--runner NoSuchRunner: .*FlinkRunner"),
        ("no.such.Runner", [], "--runner no.such.Runner: No module named"),
        ("FnApiRunner", ["--direct_num_workers=many"], "direct_num_workers: invalid int"),
    ],
)
def test_wrong_options_are_one_line(runner, options, told):
    from t5x_lite.core.beam import pipeline_options

    with pytest.raises(InputError, match=told) as error:
        pipeline_options(runner, options)
    assert len(str(error.value).splitlines()) == 1
