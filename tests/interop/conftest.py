"""A release of Hugging Face's T5, as files."""

import pytest

from scripts import goldens


@pytest.fixture
def release(tmp_path, tiny_vocabulary):
    """Writes a variant's directory and returns it with its golden."""

    def write(variant):
        golden = goldens.read(variant)
        goldens.write_release(golden, tmp_path / variant, spiece=tiny_vocabulary)
        return golden, tmp_path / variant

    return write
