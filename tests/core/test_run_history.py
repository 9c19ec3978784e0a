import json
import math

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.tracking import METRICS_FILE, Record, evaluations


def test_lines_go_on_after_a_killed_run(tmp_path):
    path = tmp_path / "new" / "run" / METRICS_FILE
    path.parent.mkdir(parents=True)
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    with Record(path.parent) as record:
        record.add(2, 1700000000.12345, {"loss": 2.5, "gradient_norm": math.inf})
        assert [json.loads(line) for line in path.read_text().splitlines()] == [
            {"step": 1},
            {"step": 2, "time": 1700000000.123, "loss": 2.5, "gradient_norm": None},
        ]


def test_a_new_directory_is_made(tmp_path):
    Record(tmp_path / "new" / "run").close()
    assert (tmp_path / "new" / "run" / METRICS_FILE).read_text() == ""


def test_evaluations(tmp_path):
    (tmp_path / METRICS_FILE).write_text(
        '{"step": 5, "loss": 1.0}\n'
        '{"step": 5, "validation/loss": 3.0}\n'
        '{"step": 10, "validation/loss": 2.0, "validation/accuracy": 0.5}\n'
        '{"step": 15, "validation/loss": 9.0}\n'
        '{"step": 10, "validation/loss": null}\n'
        '{"step": 10, "validation/lo'
    )
    found = evaluations(tmp_path, until=10)
    assert found[0] == {"validation/loss": 3.0}
    assert math.isnan(found[1].pop("validation/loss"))
    assert found[1:] == [{"validation/accuracy": 0.5}]
    assert len(evaluations(tmp_path, until=15)) == 3
    assert evaluations(tmp_path / "new", until=15) == []


@pytest.mark.parametrize("line", ["[]", "no json", '{"loss": 1.0}'])
def test_a_line_that_is_no_record(tmp_path, line):
    (tmp_path / METRICS_FILE).write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(InputError, match=r"metrics.jsonl:2 is not a valid record of metrics; "):
        evaluations(tmp_path, until=10)
