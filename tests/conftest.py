"""Settings that every test shares.

Shapes and types of the whole package are checked at run time: importing anything of `t5x_lite`
decorates its functions and dataclasses with jaxtyping and beartype, so a test that passes an array
of the wrong shape fails at the call. TensorFlow is imported by no test at collection.
"""

import gc
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Before JAX and TensorFlow are imported; a caller's own choice stands.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests compile many tiny programs and run each a few times: the compiler's effort is the cost. A
# test whose two programs must agree to the bit compiles them with the fusions that users get.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
)

import hypothesis
import jaxtyping
import pytest

from tests import turns

# Under nohup, or behind a shell's &, signals are ignored, and tests send them to their children.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

if TYPE_CHECKING:
    from t5x_lite.config import Experiment

_HAS_PROC = pathlib.Path("/proc/self/statm").exists()

jaxtyping.install_import_hook("t5x_lite", "beartype.beartype")

hypothesis.settings.register_profile("t5x_lite", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("t5x_lite")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --turn."""
    parser.addoption(
        "--turn",
        metavar="COMMIT",
        help="runs a part of the long tests only: of the slow and oracle tests one in 16, of the "
        "exhaustive ones one in 160; the commit chooses which",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases that a test's mark `gate` does not name are exhaustive; --turn leaves tests out."""
    named: dict[str, set[str]] = {}
    for item in items:
        mark = item.get_closest_marker("gate")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        case = item.callspec.id
        named.setdefault(item.nodeid.removesuffix(f"[{case}]"), set(mark.args)).discard(case)
        if case not in mark.args:
            item.add_marker(pytest.mark.exhaustive)
    wrong = {name: cases for name, cases in named.items() if cases}
    if wrong and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"a mark `gate` names cases that are not there: {wrong}")
    if (commit := config.getoption("--turn")) is not None:
        left = [item for item in items if not turns.is_due(item, commit)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if turns.is_due(item, commit)]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The garbage collector no longer visits what the imports made, and runs less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips accelerator tests where JAX has only the CPU."""
    if item.get_closest_marker("accelerator"):
        import jax

        if jax.default_backend() == "cpu":
            pytest.skip(
                "no accelerator: set JAX_PLATFORMS to cuda or tpu on a machine that has one"
            )


@pytest.fixture(autouse=True)
def _own_project() -> Iterator[None]:
    """What a test's configs make importable ends with the test."""
    from t5x_lite.core import project

    before = project.opened()
    yield
    if project.opened() != before:
        project.open_again(before)


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory() -> Iterator[None]:
    """After a file of tests, what they compiled is let go where a process has come to 4 GiB."""
    yield
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) if _HAS_PROC else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > 4 << 30:
        import jax

        jax.clear_caches()
        gc.collect()


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
    from t5x_lite.data.vocabularies.loading import train_sentencepiece

    directory = tmp_path_factory.mktemp("tiny_vocabulary")
    train_sentencepiece(english_lines, size=300, output_dir=directory)
    return directory / "sentencepiece.model"


@pytest.fixture(scope="session")
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Keeps what is compiled for the tests that run one tiny model again and again.

    Yields:
      The environment by which a subprocess shares it.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    directory = str(tmp_path_factory.mktemp("compiled"))
    options = {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield {name.upper(): str(value) for name, value in options.items()}
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory, english_lines: list[str]) -> pathlib.Path:
    """A directory with prose.txt: 400 lines, of which tasks.text holds out every hundredth."""
    directory = tmp_path_factory.mktemp("tiny_text")
    (directory / "prose.txt").write_text("\n".join(english_lines[:400]))
    return directory


@pytest.fixture(scope="session")
def tiny_glue(tmp_path_factory: pytest.TempPathFactory, english_lines: list[str]) -> pathlib.Path:
    """A directory with SST-2: 40 rows to train on and 8 to validate, with made-up labels."""
    directory = tmp_path_factory.mktemp("tiny_glue")
    (directory / "SST-2").mkdir()
    for name, lines in (("train", english_lines[:40]), ("dev", english_lines[40:48])):
        rows = "".join(f"{line[:60]}\t{i % 2}\n" for i, line in enumerate(lines))
        (directory / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    return directory


@pytest.fixture(scope="session")
def tiny_experiment(tiny_text: pathlib.Path, tiny_vocabulary: pathlib.Path) -> "Experiment":
    """Ten steps of span corruption with a T5 of one layer, with dropout, packing and shuffling."""
    from t5x_lite.config import Checkpoints, Evaluation, Experiment
    from t5x_lite.data.config import Data
    from t5x_lite.models.t5 import T5Config
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.optim.config import Adafactor, Constant

    return Experiment(
        model=T5Config(
            vocab_size=400,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_heads=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dropout_rate=0.1,
        ),
        objective=Seq2Seq(),
        data=Data(
            task="tasks.text:span_corruption",
            vocabulary=str(tiny_vocabulary),
            directory=str(tiny_text),
            batch_size=4,
            inputs_length=32,
            targets_length=16,
            shuffle_buffer=20,
        ),
        optimizer=Adafactor(schedule=Constant(value=0.01)),
        steps=10,
        log_period=1,
        checkpoints=Checkpoints(period=5),
        evaluation=Evaluation(period=10, max_batches=2, max_decode_length=8),
    )


@pytest.fixture(scope="session")
def tiny_run(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_experiment: "Experiment",
    compile_once: dict[str, str],
) -> pathlib.Path:
    """The work directory of `tiny_experiment` after its ten steps; to be read only."""
    import dataclasses

    from t5x_lite.train.training import train

    workdir = tmp_path_factory.mktemp("tiny_run") / "run"
    train(dataclasses.replace(tiny_experiment, workdir=str(workdir)))
    return workdir
