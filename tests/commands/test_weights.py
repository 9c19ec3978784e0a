"""import and export: the options that reach `run`."""

import pytest

EXPORTED = {
    "step": None,
    "dtype": "keep",
    "part": "model",
    "head": None,
    "sentence_transformers": False,
    "pooling": None,
    "normalize": None,
}


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            "import hf src dst",
            "interchange.import_hf",
            ("src", "dst"),
            {
                "dtype": "keep",
                "sentinels": "hf",
                "part": "model",
                "skip_from": None,
                "revision": None,
            },
        ),
        (
            "import hf o/m dst --dtype bfloat16 --sentinels seqio --part generator --revision v1",
            "interchange.import_hf",
            ("o/m", "dst"),
            {
                "dtype": "bfloat16",
                "sentinels": "seqio",
                "part": "generator",
                "skip_from": None,
                "revision": "v1",
            },
        ),
        (
            "import t5x src dst --vocabulary v.model --step 5 --extra-ids 0 --dropout-rate 0",
            "interchange.import_t5x",
            ("src", "dst"),
            {
                "vocabulary": "v.model",
                "extra_ids": 0,
                "step": 5,
                "dtype": "keep",
                "dropout_rate": 0.0,
                "feed_forward": None,
            },
        ),
        (
            "import adapter src dst --base work --step best --name rte",
            "adapter_interchange.import_adapter",
            ("src", "dst"),
            {"base": "work", "step": "best", "name": "rte", "revision": None},
        ),
        (
            "push dir o/m --private --message m --dry-run",
            "pushing.push",
            ("dir", "o/m"),
            {"private": True, "message": "m", "dry_run": True},
        ),
        (
            "export adapter w dst --format peft --no-head",
            "adapter_interchange.export_adapter",
            ("w", "dst"),
            {
                "form": "peft",
                "step": None,
                "name": None,
                "head": False,
                "base_name": None,
                "rank": None,
            },
        ),
        (
            "export hf w dst --step 5 --dtype float32",
            "interchange.export_hf",
            ("w", "dst"),
            {**EXPORTED, "step": 5, "dtype": "float32"},
        ),
        (
            "export hf w dst --part generator",
            "interchange.export_hf",
            ("w", "dst"),
            {**EXPORTED, "part": "generator"},
        ),
        (
            "export hf w dst --sentence-transformers --pooling cls --normalize False",
            "interchange.export_hf",
            ("w", "dst"),
            {
                **EXPORTED,
                "head": None,
                "sentence_transformers": True,
                "pooling": "cls",
                "normalize": False,
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, function, args, kwargs):
    check_call(line, function, args, kwargs)
