"""Settings that every test shares.

Shapes and types of the whole package are checked at run time: importing anything of `t5x_lite`
decorates its functions and dataclasses with jaxtyping and beartype, so a test that passes an array
of the wrong shape fails at the call. TensorFlow is imported by no test at collection.
"""

import os
import pathlib

# Before JAX and TensorFlow are imported; a caller's own choice stands.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import jaxtyping
import pytest

jaxtyping.install_import_hook("t5x_lite", "beartype.beartype")

hypothesis.settings.register_profile("t5x_lite", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("t5x_lite")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips accelerator tests where JAX has only the CPU."""
    if item.get_closest_marker("accelerator"):
        import jax

        if jax.default_backend() == "cpu":
            pytest.skip(
                "no accelerator: set JAX_PLATFORMS to cuda or tpu on a machine that has one"
            )


@pytest.fixture(scope="session")
def english_lines() -> list[str]:
    """About 200 KB of English prose that every Python carries: pydoc's topics, by paragraph."""
    from pydoc_data.topics import topics

    paragraphs = (
        " ".join(paragraph.split())
        for name in sorted(topics)
        for paragraph in topics[name].split("\n\n")
    )
    lines, size = [], 0
    for paragraph in paragraphs:
        if len(paragraph) > 40:
            lines.append(paragraph)
            size += len(paragraph)
        if size > 200_000:
            break
    return lines


@pytest.fixture(scope="session")
def tiny_vocabulary(
    tmp_path_factory: pytest.TempPathFactory, english_lines: list[str]
) -> pathlib.Path:
    """Path of a SentencePiece model of 300 pieces; pad 0, eos 1, unk 2."""
    from t5x_lite.data.vocabulary import train_sentencepiece

    directory = tmp_path_factory.mktemp("tiny_vocabulary")
    train_sentencepiece(english_lines, size=300, output_dir=directory)
    return directory / "sentencepiece.model"
