"""What the tests of tasks share."""

import pytest


@pytest.fixture(scope="session")
def vocabulary(tiny_vocabulary):
    """The tiny SentencePiece model."""
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)
