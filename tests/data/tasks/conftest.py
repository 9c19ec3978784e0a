"""What the tests of data tasks share: a WordPiece vocabulary, and modules that need TensorFlow."""

import pytest

from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="session")
def stages():
    from t5x_lite.data.tasks import stages

    return stages


@pytest.fixture(scope="session")
def tf():
    from t5x_lite.data.elements import tf

    return tf
