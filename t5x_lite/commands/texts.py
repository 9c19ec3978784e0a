"""Commands that prepare a project and its data: init, vocab, cache."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from t5x_lite.commands.command import command
from t5x_lite.commands.options import before_beam, load_config, load_driver
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    Config,
    Directory,
    Files,
    Natural,
    OptionalDirectory,
    OptionalNumber,
    Overrides,
    Positive,
    SomeDirectory,
    Text,
    Texts,
)
from t5x_lite.core.options import In, OptionError

if TYPE_CHECKING:
    from t5x_lite.data.formats.documents import Source

PROJECT_PIECES = 4000
"""Vocabulary size of the project that `t5x-lite init` writes."""
_PROJECT_BYTES = 6_000_000
_NAMED_CHARACTERS = 40

_logger = logging.getLogger(__name__)


@command
def init(directory: SomeDirectory) -> Path:
    """Write a small project that is ready to train: configs, a task, data, a vocabulary, a README.

    Nothing is downloaded: the training text is the documentation in the Python installation. The
    command takes half a minute.

    Example:
        t5x-lite init my_project

    Args:
      directory: project directory to write, which must be new or empty.

    Returns:
      The path of the project directory.

    Raises:
      InputError: if the directory is not empty or cannot be written; no output is left behind then.
    """
    from t5x_lite.commands.project_files import FILES, QUESTIONS, README
    from t5x_lite.core.files import new_directory
    from t5x_lite.data.tasks.python_docs import documents, labelled
    from t5x_lite.data.vocabularies.loading import ASCII, train_sentencepiece

    with new_directory(directory) as root:
        for name, content in FILES.items():
            _write(root / name, content)
        name = Path(directory).absolute().name
        _write(root / "README.md", README.format(name=name))
        corpus = documents()
        texts = _within([document.text for document in corpus], _PROJECT_BYTES)
        _write(root / "data/text/documents.txt", "".join(f"{text}\n" for text in texts))
        for split, rows in _table(labelled(corpus)).items():
            lines = (json.dumps({"text": text, "package": label}) for text, label in rows)
            _write(root / f"data/table/{split}.jsonl", "".join(f"{line}\n" for line in lines))
        asked = "".join(json.dumps({"inputs": text}) + "\n" for text in QUESTIONS)
        _write(root / "data/questions.jsonl", asked)
        _write(root / "data/questions.txt", "".join(f"{text}\n" for text in QUESTIONS))
        with contextlib.suppress(FileExistsError):
            (root / "vocabulary").mkdir()
        train_sentencepiece(
            texts, size=PROJECT_PIECES, output_dir=root / "vocabulary", required=ASCII
        )
    made = Path(directory)
    print(
        f"wrote the project {made}; begin with `cd {made} && t5x-lite train "
        "configs/pretrain.py`; see README.md"
    )
    return made


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def _within(texts: Sequence[str], size: int) -> list[str]:
    """Return every n-th text, with n such that the total size is about `size` bytes."""
    total = sum(len(text.encode()) + 1 for text in texts)
    step = max(1.0, total / size)
    places = {int(number * step) for number in range(int(len(texts) / step))}
    return [text for place, text in enumerate(texts) if place in places]


def _table(pairs: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Return split name -> examples; validation and test get a tenth each, by a hash."""
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    for text, label in pairs:
        place = hashlib.sha1(text.encode("utf-8", "surrogatepass")).digest()[0] % 10
        splits[{8: "validation", 9: "test"}.get(place, "train")].append((text, label))
    return splits


@command
def vocab(
    input: Files,
    *,
    output: Directory,
    size: Positive,
    no_ascii: bool = False,
    alpha: Annotated[OptionalNumber, In(0, 1, "(]")] = None,
    encoder: bool = False,
    character_coverage: Annotated[OptionalNumber, In(0.98, 1, "[]")] = None,  # SentencePiece's
    seed: Natural = 0,
    text: Text = "{text}",
) -> Path:
    """Train a SentencePiece vocabulary on unlabeled text: files, directories or data sets.

    A plain text file has one document or sentence per line. In JSON lines (such as the output of
    `t5x-lite c4`), Parquet and data sets, the text field is read; docs/guides/documents.md lists
    all inputs.

    Digits, ASCII letters and punctuation always get a piece, because labels and numbers need them.
    As in T5, byte fallback is off; to encode any text, train with --data.vocabulary bytes. With
    weights (FILE=WEIGHT) or --alpha, the training text is sampled from the files in proportion to
    their weights, without repeats, and the command prints the number of pieces per word of each
    file.

    Example:
        t5x-lite vocab --input en.txt=10 'de/*.txt=1' --output work/vocabulary --size 32000

    Args:
      input: training text: text files, JSON lines, Parquet, Arrow, directories and patterns of such
        files, hf://NAME or tfds://NAME; "-" reads standard input. FILE=WEIGHT sets a file's
        fraction of the training text.
      output: output directory of the vocabulary, for the file sentencepiece.model.
      size: number of pieces in the vocabulary, not counting the sentinels.
      no_ascii: omit digits, ASCII letters and punctuation that are rare in the text.
      alpha: exponent X that samples files without weights in proportion to bytes^X; 0.3 is usual
        for multilingual text; default: all text.
      encoder: write a vocabulary for encoders, spm.model, with the special pieces of DeBERTa:
        [PAD], [CLS], [SEP] and [UNK], and [MASK] as the last piece.
      character_coverage: fraction of the text's characters that the vocabulary covers, from 0.98 to
        1; default: 0.9995 and every frequent character.
      seed: random seed of the sampling of lines by weight, and of 2,000,000 lines of a longer text.
      text: name of the column with the text in JSON lines and tables, or a template with column
        names in braces, such as "{title} {text}".

    Returns:
      The path of the vocabulary file, which is also printed.
    """
    from t5x_lite.data.formats.documents import (
        as_template,
        tempered_files,
        weighted_files,
        weighted_lines,
    )
    from t5x_lite.data.tasks.text_source import texts_of
    from t5x_lite.data.vocabularies.loading import ASCII, load_vocabulary, train_sentencepiece
    from t5x_lite.data.vocabularies.unknown_tokens import fertility

    if not input:
        raise OptionError("--input needs at least one file")
    template = as_template(text)

    def read(names: Sequence[str]) -> Iterator[str]:
        for name in names:
            for document in texts_of(name, template=template):
                yield from document.split("\n")

    sources = weighted_files(input, is_place=_is_place)
    if alpha is not None:
        if sources is not None:
            raise InputError(
                "--alpha computes the weights of the files, but --input also has weights "
                "(FILE=WEIGHT); remove one of the two"
            )
        sources = tempered_files(input, alpha, is_place=_is_place, read=read)
    required = "" if no_ascii else ASCII
    with contextlib.ExitStack() as stack:
        if character_coverage is None and sources is None:
            input = [_readable_twice(path, stack) for path in input]

        def lines() -> Iterator[str]:
            if sources is None:
                return read(input)
            return weighted_lines(sources, seed=seed, read=read)

        if character_coverage is None:
            required = _with_frequent(required, lines(), size=size)
        try:
            path = train_sentencepiece(
                lines(),
                size=size,
                output_dir=output,
                character_coverage=0.9995 if character_coverage is None else character_coverage,
                required=required,
                encoder=encoder,
                seed=seed,
            )
        except InputError as error:
            raise _with_weights(error, sources) from error
    for source in sources or ():
        found = fertility(read(source.files), load_vocabulary(path))
        _logger.info("%s: %s", source.name, found)
    print(os.fspath(path))
    return Path(path)


def _is_place(name: str) -> bool:
    from t5x_lite.core.remote import is_remote
    from t5x_lite.data.formats.documents import is_named

    return is_named(name) or is_remote(name) or os.path.isdir(name)


def _with_frequent(required: str, lines: Iterable[str], *, size: int) -> str:
    """Return the characters that get a piece: `required` ones and frequent ones of the text."""
    from t5x_lite.data.vocabularies.loading import frequent_characters

    selected, rest = frequent_characters(lines, limit=size // 2)
    if rest:
        _logger.warning(
            "the vocabulary has no piece for %d frequent characters, such as %s; raise --size "
            "to at least %d, or set --character-coverage",
            len(rest),
            " ".join(rest[:_NAMED_CHARACTERS]),
            2 * (len(selected) + len(rest)),
        )
    return required + "".join(one for one in selected if one not in required)


def _readable_twice(path: str, stack: contextlib.ExitStack) -> str:
    """Return the path of a file, or of a temporary copy of standard input or a pipe."""
    from t5x_lite.data.formats.lines import open_text

    if path != "-" and (_is_place(path) or not os.path.exists(path) or os.path.isfile(path)):
        return path
    copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="t5x_lite."))  # noqa: SIM115
    with contextlib.ExitStack() as opened:
        stream = sys.stdin.buffer if path == "-" else opened.enter_context(open_text(path))
        shutil.copyfileobj(stream, copy)
    copy.flush()
    return copy.name


def _with_weights(error: InputError, sources: "Sequence[Source] | None") -> InputError:
    """Add to an error about too little text the hint that the weights may be the cause."""
    if sources is None or not str(error).startswith("too little text"):
        return error
    return InputError(
        f"{error}; because lines are not repeated, the file that is shortest for its weight "
        "limits how much text of the other files is used"
    )


@command
def cache(
    config: Config = "",
    overrides: Overrides = (),
    *,
    output: Directory,
    convert: OptionalDirectory = None,
    splits: Texts = (),
    num_workers: Positive = 1,
    bake: bool = False,
    runner: Text = "local",
) -> list[dict[str, Any]]:
    r"""Run a config's task once and write its tokens, which train reads by --data.cache DIR.

    Training from a cache needs no TensorFlow, and still corrupts each epoch differently. Options of
    Apache Beam follow "--", with each --runner except local.

    Example:
        t5x-lite cache configs/tiny_pretrain.py --output work/cache
        t5x-lite cache configs/tiny_pretrain.py --output /shared/cache --runner FlinkRunner \
            -- --flink_master=HOST:8081
        t5x-lite cache --convert OLD --output NEW

    Args:
      config: path of a Python file that defines `experiment`, or of a work directory's config.json.
      overrides: changed config fields as --FIELD VALUE; options of Apache Beam follow "--".
      output: output directory of the cache, which must be new or empty.
      convert: directory of a cache of version 0.1 to convert to the current format, without CONFIG.
      splits: names of the splits to write; default: all splits with examples.
      num_workers: number of worker processes of --runner local.
      bake: store corrupted examples, which are the same in each epoch; only with --runner local.
      runner: "local" for processes on this machine, or the name of an Apache Beam runner, such as
        DirectRunner, DataflowRunner or FlinkRunner.

    Returns:
      The summary of each cache, which the command also prints. A mixture has one cache per task,
      such as OUTPUT/glue_cola; training mixes the caches by --data.cache OUTPUT/glue_cola ...
    """
    if convert:
        if config or overrides or splits or bake or num_workers != 1 or runner != "local":
            raise OptionError(
                "--convert can be combined only with --output, not with CONFIG or other options"
            )
        from t5x_lite.data.cache.files import Cache
        from t5x_lite.data.cache.making import convert_cache

        convert_cache(convert, output)
        found = Cache(output).summary()
        _print_cache(found)
        return [found]
    if not config:
        raise OptionError(
            "cache needs CONFIG as the first argument (t5x-lite cache CONFIG [--FIELD VALUE "
            "...]), or --convert DIR"
        )
    if runner != "local" and num_workers != 1:
        raise OptionError(
            "--num-workers is supported only with --runner local; set the workers of Apache "
            "Beam by options after --"
        )
    if runner != "local" and bake:
        raise OptionError("--bake is supported only with --runner local")
    fields, beam_options = before_beam(overrides, runner=runner)
    experiment = load_config(config, fields, command=cache.options)
    from t5x_lite.core.object_store import data_path
    from t5x_lite.data.cache.files import Cache
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.config import truncation_of
    from t5x_lite.data.mixtures import find_mixture
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    write: Callable[..., Any] = partial(write_cache, bake=bake, num_workers=num_workers)
    if runner != "local":
        for name in truncation_of(experiment.data):
            raise InputError(
                f"--runner {runner} processes the files of a task in parallel, but data.{name} "
                "depends on their order; unset one of the two"
            )
        driver = load_driver("t5x_lite.data.cache.making_beam", runner=runner, extras="data,beam")
        write = partial(driver.write_cache, runner=runner, options=beam_options)
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    caches = {output: experiment.data}
    if find_mixture(experiment.data) is not None:
        from t5x_lite.data.loading import trained_members  # now: TensorFlow takes seconds

        # Before anything is written: the others would have to be written again.
        trained = trained_members(experiment.data, vocabulary, seed=experiment.seed)
        caches = {str(data_path(output) / one.member.name): one.data for one in trained}
    made = []
    for directory, data in caches.items():
        write(data, vocabulary, directory, splits=splits or None, seed=experiment.seed)
        made.append(Cache(directory).summary())
        _print_cache(made[-1])
    return made


def _print_cache(found: dict[str, Any]) -> None:
    from t5x_lite.core.progress import print_result

    rows = [{"split": name, **split} for name, split in found["splits"].items()]
    if sys.stdout.isatty():
        print(f"{found['cache']}: {found['task']}")
    print_result(found, rows, indent=None)
