import json

import pytest

from t5x_lite.errors import InputError
from t5x_lite.run.caching import cache, verify


def test_cache_writes_says_what_and_verifies(tmp_path, tiny_experiment, capsys):
    output = tmp_path / "c"
    cache(tiny_experiment, output=str(output), splits=["validation"])
    told = json.loads(capsys.readouterr().out)
    assert told["cache"] == str(output)
    assert told["task"] == "tasks.text:span_corruption"
    [(split, counts)] = told["splits"].items()
    assert (split, counts["shards"]) == ("validation", 1)
    assert 0 < counts["examples"] < counts["tokens"] < counts["bytes"]
    verify(str(output))
    assert json.loads(capsys.readouterr().out) == told
    shard = output / "validation-00000.array_record"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="does not fit its checksum"):
        verify(str(output))
