"""Our text of whole benchmarks equals that of the t5 library, by the digest of each split.

Give the directories of the official files by T5X_LITE_GLUE and T5X_LITE_SUPERGLUE; the digests are
those of scripts/text_goldens.py.
"""

import hashlib
import importlib
import json
import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "t5_text.json"
DIGESTS = json.loads(GOLDEN.read_text())
DIRECTORIES = {"glue": "T5X_LITE_GLUE", "super_glue": "T5X_LITE_SUPERGLUE"}


@pytest.mark.parametrize("name", DIGESTS)
def test_every_example_has_t5s_text(name, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    family, task, split = name.split("/")
    directory = os.environ.get(DIRECTORIES[family], "")
    if not directory:
        pytest.skip(f"{DIRECTORIES[family]} is not set")
    arguments = TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=directory,
        inputs_length=64,
        targets_length=16,
    )
    task = getattr(importlib.import_module(f"tasks.{family}"), task)(arguments)
    digest, count = hashlib.sha256(), 0
    dataset = task.source.get_dataset(split, shuffle=False)
    pairs = dataset.map(lambda example: (example["inputs"], example["targets"])).batch(1000)
    for inputs, targets in pairs.as_numpy_iterator():
        for pair in zip(inputs, targets, strict=True):
            digest.update(json.dumps([text.decode() for text in pair]).encode() + b"\n")
        count += len(inputs)
    assert {"examples": count, "sha256": digest.hexdigest()} == DIGESTS[name]
