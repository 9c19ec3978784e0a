"""serve: its options as what a server listens on, answers and bounds."""

from unittest import mock

import pytest

from t5x_lite.cli import main
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.serve import server
from t5x_lite.serve.batching import Limits
from t5x_lite.serve.endpoints import Asked
from t5x_lite.serve.server import Address


@pytest.mark.parametrize(
    ("line", "args", "kwargs"),
    [
        (
            "serve --checkpoint w",
            (("w",),),
            {
                "address": Address(),
                "step": None,
                "use": None,
                "adapters": (),
                "adapters_directory": None,
                "endpoints": (),
                "batch_size": 32,
                "wait": 0.005,
                "inputs_length": None,
                "compilation_cache": "",
                "asked": Asked(),
                "limits": Limits(),
            },
        ),
        (
            "serve --checkpoint v w --host ::1 --port 81 --token-file t --step best "
            "--adapters.use a --endpoints score --batch-size 4 --lengths 64 16 --wait-ms 20 "
            "--inputs-length 9 --targets-length 8 --long-inputs refuse --max-decode-length 5 "
            "--num-beams 4 --length-rule hf --num-return 3 --pooling cls --normalize False "
            "--compilation-cache c --queue 7 --max-texts 6 --max-body 99 --connections 5 "
            "--timeout 4 --body-timeout 3",
            (("v", "w"),),
            {
                "address": Address(host="::1", port=81, token_file="t"),
                "step": "best",
                "use": "a",
                "adapters": (),
                "adapters_directory": None,
                "endpoints": ("score",),
                "batch_size": 4,
                "wait": 0.02,
                "inputs_length": 9,
                "compilation_cache": "c",
                "asked": Asked(
                    decoding=Decoding(
                        max_decode_length=5, num_beams=4, length_rule="hf", num_return=3
                    ),
                    lengths=(16, 64),
                    targets_length=8,
                    long_inputs="refuse",
                    max_rows=6,
                    pooling="cls",
                    normalize=False,
                ),
                "limits": Limits(
                    queue=7, max_rows=6, max_body=99, connections=5, timeout=4.0, body_timeout=3.0
                ),
            },
        ),
    ],
)
def test_options_become_groups(monkeypatch, line, args, kwargs):
    stand_in = mock.create_autospec(server.serve)
    monkeypatch.setattr(server, "serve", stand_in)
    assert main(line.split()) == 0
    stand_in.assert_called_once_with(*args, **kwargs)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--port 65536", "--port must be in [0, 65535], got 65536"),
        ("--port -1", "--port must be at least 0"),
        ("--lengths 48", "powers of two, at least 16, got 48"),
        ("--wait-ms -1", "--wait-ms must be in [0, 60000], got -1"),
        ("--max-texts 9 --queue 8", "the queue holds only 8"),
        ("--queue 0", "queue must be at least 1: got 0"),
    ],
)
def test_wrong_options(capsys, option, message):
    assert main(f"serve --checkpoint w {option}".split()) == 2
    assert message in capsys.readouterr().err
