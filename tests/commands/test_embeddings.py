"""embed: the options that reach `run`."""

import pytest

from t5x_lite.records.shares import Share

USUAL = {
    "step": None,
    "use": None,
    "format": "auto",
    "pooling": None,
    "normalize": None,
    "prefix": None,
    "prompt": None,
    "role": "query",
    "batch_size": 32,
    "inputs_length": None,
    "long_inputs": "cut",
    "longest_line": 64 << 20,
    "bag_top": 0,
    "heads": ("dense",),
    "mcls": None,
    "numbers": "float16",
    "part": None,
    "compute_dtype": None,
    "text": "{text}",
}


@pytest.mark.parametrize(
    ("line", "kwargs"),
    [
        ("--input i.txt --output o.npy", USUAL),
        (
            "--input - --output o.npy --step 3 --format jsonl --pooling cls --normalize False "
            "--prefix q: --batch-size 8 --inputs-length 64 --long-inputs refuse --longest-line 1 "
            "--adapters.use= --role passage --heads dense lexical --mcls 256 "
            "--vector-numbers int8 --part 2/8 --compute-dtype bfloat16",
            {
                **USUAL,
                "step": 3,
                "use": "",
                "format": "jsonl",
                "pooling": "cls",
                "normalize": False,
                "prefix": "q:",
                "prompt": None,
                "role": "passage",
                "batch_size": 8,
                "inputs_length": 64,
                "long_inputs": "refuse",
                "longest_line": 1,
                "bag_top": 0,
                "heads": ("dense", "lexical"),
                "mcls": 256,
                "numbers": "int8",
                "part": Share(2, 8),
                "compute_dtype": "bfloat16",
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, kwargs):
    source = line.split()[1]
    check_call(
        f"embed --checkpoint w {line}",
        "embedding.embed",
        ("w",),
        {"input": source, "output": "o.npy", **kwargs},
    )


def test_a_part_that_is_none(capsys):
    from t5x_lite.cli import main

    line = "embed --checkpoint w --input i --output o.npy --part 9/8"
    assert main(line.split()) == 2
    assert "--part must be I/N, such as 1/4 and 4/4: got '9/8'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--step -1", "--batch-size 0", "--inputs-length 0", "--mcls 0"])
def test_numbers_that_are_too_small(option, capsys):
    from t5x_lite.cli import main

    assert main(f"embed --checkpoint w --input i --output o.npy {option}".split()) == 2
    assert "must be at least" in capsys.readouterr().err
