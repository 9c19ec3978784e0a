"""predict and score: the options that reach `run`."""

import dataclasses

import pytest

from t5x_lite.commands.answers import Predict
from t5x_lite.decoding.config import Decoding
from t5x_lite.inference.answers import Asked

ANSWERED = {"step": None, "use": None, "batch_size": 32, "inputs_length": None,
            "long_inputs": "cut", "longest_line": 64 << 20}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            "predict --checkpoint w --input in.jsonl --output -",
            "answering.predict",
            (("w",),),
            {
                **ANSWERED,
                "input": "in.jsonl",
                "output": "-",
                "prompt": "",
                "head": None,
                "asked": Asked(),
                "decoding": Decoding(),
            },
        ),
        (
            "predict --checkpoint v w --step 0 --input - --output o --batch-size 1 --prompt so "
            "--adapters.use a,b "
            "--inputs-length 9 --long-inputs refuse --max-decode-length 5 --num-beams 4 "
            "--length-rule hf --length-penalty 0.8 --early-stopping never --num-return 3 "
            "--min-length 2 --no-repeat-ngram 3 --longest-line 9",
            "answering.predict",
            (("v", "w"),),
            {
                "step": 0,
                "use": "a,b",
                "input": "-",
                "output": "o",
                "prompt": "so",
                "batch_size": 1,
                "inputs_length": 9,
                "long_inputs": "refuse",
                "longest_line": 9,
                "head": None,
                "asked": Asked(),
                "decoding": Decoding(
                    max_decode_length=5,
                    num_beams=4,
                    length_rule="hf",
                    length_penalty=0.8,
                    early_stopping="never",
                    num_return=3,
                    min_length=2,
                    no_repeat_ngram=3,
                ),
            },
        ),
        (
            "predict --checkpoint w --input i --output o --temperature 1 --top-k 5 --top-p 0.9 "
            "--min-p 0.1 --seed 7 --early-stopping True --length-rule hf",
            "answering.predict",
            (("w",),),
            {
                **ANSWERED,
                "input": "i",
                "output": "o",
                "prompt": "",
                "head": None,
                "asked": Asked(),
                "decoding": Decoding(
                    temperature=1.0,
                    top_k=5,
                    top_p=0.9,
                    min_p=0.1,
                    seed=7,
                    early_stopping=True,
                    length_rule="hf",
                ),
            },
        ),
        (
            "score --checkpoint w --input i --output o --step 3 --batch_size 2 --adapters.use=a",
            "answering.score",
            (("w",),),
            {
                **ANSWERED,
                "step": 3,
                "use": "a",
                "input": "i",
                "output": "o",
                "candidates": None,
                "batch_size": 2,
                "targets_length": None,
            },
        ),
        (
            "score --checkpoint v w --input i --output o --candidates c --inputs-length 7 "
            "--targets-length 8",
            "answering.score",
            (("v", "w"),),
            {
                **ANSWERED,
                "input": "i",
                "output": "o",
                "candidates": "c",
                "inputs_length": 7,
                "targets_length": 8,
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, function, args, kwargs):
    check_call(line, function, args, kwargs)


def test_predict_offers_every_choice_of_decoding_with_its_default():
    own = {field.name: field.default for field in dataclasses.fields(Predict)}
    for field in dataclasses.fields(Decoding):
        if field.name != "eos_id":
            assert own[field.name] == field.default, field.name
