"""Commands that prepare a project and data: init, vocab, cache, c4.

Contents of the files that `t5x-lite init` writes: README, configs and a task.

Commands that prepare a project and its data: init, vocab, cache.

The command c4, which builds C4 from files of Common Crawl on one machine or on a cluster.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from t5x_lite.c4.config import Cleaning, missing_lists
from t5x_lite.c4.config import preset as rules_of
from t5x_lite.commands.command import PROG, before_beam, command, load_config, load_driver
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    Config,
    Directory,
    Files,
    Natural,
    Number,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalPositive,
    Overrides,
    Positive,
    SomeDirectory,
    Text,
    Texts,
)
from t5x_lite.core.options import In, OptionError, option_names, parse

if TYPE_CHECKING:
    from t5x_lite.c4.output import Kind
    from t5x_lite.c4.pages import Input, Tally
    from t5x_lite.core.workers import Row
    from t5x_lite.data.formats.documents import Source

_logger = logging.getLogger(__name__)


README = """\
# {name}

A small project of t5x_lite: pretrain a T5, fine-tune it on a table, use it. The English is the
documentation that every Python installation carries; `data/` holds it. Put your own data, sizes and
tasks in its place. The commands are given in this directory; the times are of two CPU cores.

    # 400 steps of span corruption, some 2 minutes; the same command again resumes
    t5x-lite train configs/pretrain.py

    # from those weights: which package does a text document? 600 steps, some 3 minutes
    t5x-lite train configs/finetune.py

    # accuracy on the test split, and predictions.jsonl; half a minute
    t5x-lite evaluate configs/finetune.py --checkpoint work/finetune --output work/evaluation \\
        --evaluation.split test

    # ask it; some seconds
    t5x-lite predict --checkpoint work/finetune --input data/questions.jsonl --output -

    # vectors of texts, float32 [N, 128], and one HTML page about the run; some seconds each
    t5x-lite embed --checkpoint work/pretrain --input data/questions.txt --output work/vectors.npy
    t5x-lite report work/finetune

`--dry-run` after a config says what a run would do and stops: sizes, memory, the first batch as
text. `t5x-lite train configs/pretrain.py --help` lists all fields; `--FIELD VALUE` changes one.

| file | what to change |
|---|---|
| `configs/pretrain.py` | sizes of the model, optimizer, steps |
| `configs/finetune.py` | the table, lengths, steps |
| `tasks/packages.py` | a task in Python; with `tasks.files` a table needs none |
| `data/text/*.txt` | one document a line: text to pretrain on |
| `data/table/*.jsonl` | one row a line; CSV, TSV, Parquet and Arrow files do as well |
| `vocabulary/` | `t5x-lite vocab --input data/text/*.txt --output vocabulary --size 4000` |

No config at all is needed to fine-tune a checkpoint on a table:

    t5x-lite finetune --init work/pretrain --table data/table --inputs 'documentation: {{text}}' \\
        --targets '{{package}}' --workdir work/table --epochs 2

Add `--adapters.add 'packages = lora(r=8)'` to train a small module in place of the model. Modules
of your own `tasks/` and `configs/` win over those that t5x_lite ships, such as `tasks.glue:sst2`.
"""

PRETRAIN = '''\
"""Pretrains a tiny T5 1.1 by span corruption on data/text.

Command:
    t5x-lite train configs/pretrain.py
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.config import InverseSquareRoot

experiment = Experiment(
    model=T5Config(
        vocab_size=4224,  # 4000 pieces, T5's 100 sentinels, rounded up
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
        unroll=True,
    ),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.text:span_corruption",  # shipped with t5x_lite
        directory="data/text",
        vocabulary="vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=32,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=1000)),
    steps=400,
    log_period=25,
    workdir="work/pretrain",
    checkpoints=Checkpoints(period=200, keep=2),
    evaluation=Evaluation(period=200, max_batches=8),
)
'''

FINETUNE = '''\
"""Fine-tunes the model of configs/pretrain.py on the table data/table.

Command:
    t5x-lite train configs/finetune.py
"""

import dataclasses

from configs.pretrain import experiment as pretraining
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data.config import Data
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.config import Constant

experiment = dataclasses.replace(
    pretraining,
    init=Init(checkpoint="work/pretrain"),
    data=Data(
        task="tasks.packages:package",  # tasks/packages.py of this project
        directory="data/table",
        vocabulary="vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=16,
    ),
    optimizer=Adafactor(schedule=Constant(value=5e-3)),
    steps=600,
    workdir="work/finetune",
    checkpoints=Checkpoints(period=200, keep=1, best="validation/score"),
    evaluation=Evaluation(period=200, batch_size=64, max_decode_length=8),
)
'''

TASK = '''\
"""A task of this project: which package does a text document?

A task is a function that takes TaskArguments and returns a seqio.Task; a config names it as
"tasks.packages:package". This one reads the files of data.directory as `tasks.files` does, which
t5x_lite ships, and says which columns are shown. Its labels are those of the training rows.
"""

import dataclasses

import seqio

from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.config import TaskArguments
from tasks.files import classify


def package(arguments: TaskArguments) -> seqio.Task:
    """The package's name is the target."""
    columns = Columns(inputs="documentation: {text}", targets="{package}")
    return classify(dataclasses.replace(arguments, columns=columns))
'''

QUESTIONS = (
    "documentation: Lexer for the source code of the Rust programming language.",
    "documentation: Returns an array with the same shape, filled with zeros.",
    "documentation: Compute the eigenvalues of a sparse symmetric matrix.",
)

FILES = {
    "configs/pretrain.py": PRETRAIN,
    "configs/finetune.py": FINETUNE,
    "tasks/packages.py": TASK,
}
"""Path -> content of the files that `t5x-lite init` writes without changes."""


PROJECT_PIECES = 4000
"""Vocabulary size of the project that `t5x-lite init` writes."""
_PROJECT_BYTES = 6_000_000
_NAMED_CHARACTERS = 40


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
    total = sum(len(text.encode()) + 1 for text in texts)
    step = max(1.0, total / size)
    places = {int(number * step) for number in range(int(len(texts) / step))}
    return [text for place, text in enumerate(texts) if place in places]


def _table(pairs: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
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
        files (local, gs:// or s3://), hf://NAME or tfds://NAME; "-" reads standard input.
        FILE=WEIGHT samples each file in proportion to its weight.
      output: output directory for the vocabulary file: sentencepiece.model, or spm.model with
        --encoder; an existing file is replaced.
      size: number of pieces in the vocabulary, not counting the sentinels.
      no_ascii: give rare digits, ASCII letters and punctuation no piece; default: each has a piece.
      alpha: exponent X to sample each file in proportion to (size in bytes)^X, instead of
        FILE=WEIGHT; 0.3 is usual for multilingual text; default: use all text.
      encoder: write a vocabulary for encoders, spm.model, with the special pieces of DeBERTa:
        [PAD], [CLS], [SEP] and [UNK]; [MASK] follows the last piece, so its id is N of --size;
        default: a vocabulary for a T5.
      character_coverage: fraction of the text's characters that the vocabulary covers, from 0.98 to
        1; default: 0.9995, plus all frequent characters (100 occurrences in a long text).
      seed: random seed for sampling lines by file weight, and for sampling 2,000,000 lines of a
        longer text.
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
    from t5x_lite.data.vocabularies.encoder_tokens import fertility
    from t5x_lite.data.vocabularies.loading import ASCII, load_vocabulary, train_sentencepiece

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
      config: config file: a Python file that defines `experiment`, or a work directory's
        config.json.
      overrides: config fields to change, as --FIELD VALUE; options of Apache Beam follow "--".
      output: output directory of the cache, which must be new or empty.
      convert: cache directory written by version 0.1, to convert to the current format; CONFIG is
        omitted then.
      splits: names of the splits to write; default: all splits with examples.
      num_workers: number of worker processes of --runner local.
      bake: apply the task's random corruption (such as span corruption) once and store the result,
        the same for every epoch; only with --runner local; default: training corrupts each epoch
        differently.
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
            "`t5x-lite cache` requires CONFIG as the first argument (t5x-lite cache CONFIG "
            "[--FIELD VALUE ...]), or --convert DIR"
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
                f"depends on the order of the files; set --runner local, or unset data.{name}"
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
    from t5x_lite.core.workers import print_result

    rows = [{"split": name, **split} for name, split in found["splits"].items()]
    if sys.stdout.isatty():
        print(f"{found['cache']}: {found['task']}")
    print_result(found, rows, indent=None)


BYTES_OF_A_SHARD = 1 << 28
"""Bytes of stored input per output shard; a crawl of 8 TB gets 1024 shards, like released C4."""
MAX_SHARDS = 1024
_VALIDATION_PAGES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rules:
    """Options of the C4 cleaning rules, with the prefix --cleaning."""

    cleaning: Cleaning


@command
def c4(
    input: Files,
    overrides: Overrides = (),
    *,
    output: Directory,
    preset: Literal["released", "paper"] = "released",
    variant: Literal["en", "en.noclean", "realnewslike", "webtextlike", "multilingual"] = "en",
    bad_words: OptionalFile = None,
    domains: OptionalFile = None,
    urls: OptionalFile = None,
    base: Text = "",
    num_shards: OptionalPositive = None,
    array_record: bool = False,
    workers: OptionalPositive = None,
    memory: Annotated[Number, In(0, 1 << 20, "()")] = 2.0,
    runner: Text = "local",
) -> dict[str, Any]:
    r"""Build C4 from Common Crawl WET or WARC files: clean, deduplicate, and report.

    The kept pages are written to OUTPUT in shards. report.html and stats.json count the dropped
    pages by reason, and manifest.json is written last. If the command is killed, run it again to
    resume. --cleaning.FIELD VALUE changes a rule, such as --cleaning.min-words 3;
    docs/reference/c4_rules.md lists the fields and their values. With each --runner except
    local, options of Apache Beam follow "--".

    Example:
        t5x-lite c4 --input crawl/*.warc.wet.gz --output c4 --bad-words en.txt
        t5x-lite c4 --input gs://B/wet.paths --output gs://B/c4 --runner DataflowRunner \
            -- --project=P --region=R --temp_location=gs://B/tmp

    Args:
      input: WET or WARC files (plain or .gz), file patterns, directories, gs:// or s3:// paths, or
        text files with one such path per line (*.paths, *.paths.gz or *.txt).
      overrides: cleaning rules to change, as --cleaning.FIELD VALUE; options of Apache Beam follow
        "--".
      output: output directory, which is new or contains unfinished output of the same command.
      preset: set of cleaning rules: "released" as in the published C4, "paper" as in the first
        version of the paper.
      variant: variant of C4 to build, such as realnewslike or multilingual.
      bad_words: file with one bad word per line, or for --variant multilingual a directory of such
        files; pages with a bad word are dropped; default: keep these pages.
      domains: JSON file of the domains to keep with --variant realnewslike: {domain: true, or a
        list of subdomains}.
      urls: file with the URLs of the pages to keep with --variant webtextlike, one per line.
      base: prefix for relative paths in the lists of paths (*.paths or *.txt), such as
        s3://commoncrawl.
      num_shards: number of shards of the training split; default: in proportion to the input's
        size, with 1024 shards for a complete crawl.
      array_record: also write the pages as ArrayRecord files.
      workers: number of worker processes of --runner local; default: one per CPU core.
      memory: memory in GiB that deduplication uses before it writes to disk; only with --runner
        local.
      runner: "local" for processes on this machine, or the name of an Apache Beam runner, such as
        DirectRunner, DataflowRunner or FlinkRunner.

    Returns:
      The sizes of the corpus, which the command also prints.
    """
    if not input:
        raise OptionError("--input needs at least one file")
    if runner != "local" and workers is not None:
        raise OptionError(
            "--workers is supported only with --runner local; set the workers of Apache Beam "
            "by options after --"
        )
    changes, beam_options = before_beam(overrides, runner=runner)
    lists = {"bad_words": bad_words, "domains": domains, "urls": urls}
    given = {name: path for name, path in lists.items() if path is not None}
    cleaning = _changed(dataclasses.replace(rules_of(preset, variant), **given), changes)
    from t5x_lite.c4 import local
    from t5x_lite.c4.cleaning import load_counter
    from t5x_lite.c4.local import show_progress
    from t5x_lite.c4.pages import check_archives, expand_inputs
    from t5x_lite.core.workers import print_result
    from t5x_lite.report.c4 import write_report

    _check_lists(cleaning, variant)
    files = expand_inputs(input, base=base)
    check_archives(files)
    shards = num_shards or default_shards(files)
    kinds: tuple[Kind, ...] = ("json", "array_record") if array_record else ("json",)
    about = {
        "preset": preset,
        "variant": variant,
        "sentences": load_counter().name,
        "cleaning": dataclasses.asdict(cleaning),
    }

    def report(tally: "Tally") -> None:
        write_report(output, tally, about)

    if runner == "local":
        with show_progress() as progress:
            tally = local.run(
                files,
                output,
                cleaning,
                workers=workers or 0,
                memory_limit=int(memory * 2**30),
                num_shards=shards,
                kinds=kinds,
                progress=progress,
                report=report,
            )
    else:
        tally = load_driver("t5x_lite.c4.beam", runner=runner, extras="c4,beam").run(
            files,
            output,
            cleaning,
            runner=runner,
            options=beam_options,
            num_shards=shards,
            kinds=kinds,
            report=report,
        )
    found = _summary(output, tally)
    if not found["pages_kept"]:
        _logger.warning(
            "the cleaning rules dropped every page; see the counts by reason in %s", found["report"]
        )
    _warn_of_empty_validation(found["pages"], cleaning.validation_modulus)
    print_result(found, _rows(found), indent=None)
    return found


def _changed(rules: Cleaning, changes: Sequence[str]) -> Cleaning:
    """Return the cleaning rules, changed by options such as --cleaning.min-words 3."""
    found, _ = parse(
        _Rules,
        changes,
        prog=f"{PROG} c4",
        default=_Rules(cleaning=rules),
        other_options=option_names(c4.options),
    )
    return found.cleaning


def _check_lists(cleaning: Cleaning, variant: str) -> None:
    """Raise InputError if a list that the C4 variant needs is missing."""
    for name in missing_lists(cleaning, variant):
        if name != "bad_words":
            raise InputError(f"--variant {variant} needs a list of pages; pass --{name} FILE")
        _logger.warning(
            "no --bad-words FILE is set, so pages with bad words are kept, unlike in C4"
        )


def default_shards(files: "Sequence[Input]") -> int:
    """Return the number of training shards for the total size of the input files."""
    return max(1, min(MAX_SHARDS, sum(file.size for file in files) // BYTES_OF_A_SHARD))


def _summary(output: str, tally: "Tally") -> dict[str, Any]:
    from t5x_lite.report.c4 import REPORT

    read = tally.stages.get("read", {})
    pages = {split: counts["pages"] for split, counts in sorted(tally.splits.items())}
    return {
        "output": output,
        "pages_read": read.get("pages_in", 0),
        "pages_kept": sum(pages.values()),
        "pages": pages,
        "bytes": sum(counts["bytes"] for counts in tally.splits.values()),
        "damaged_records": tally.damage.total(),
        "report": f"{output.rstrip('/')}/{REPORT}",
    }


def _rows(found: Mapping[str, Any]) -> "Iterator[Row]":
    for name, value in found.items():
        if name != "pages":
            yield {"": name.replace("_", " "), " ": value}
    for split, pages in found["pages"].items():
        yield {"": f"pages of {split}", " ": pages}


def _warn_of_empty_validation(pages: Mapping[str, int], modulus: int) -> None:
    """Warn about each C4 split, such as "train", that has no validation pages."""
    for split, kept in pages.items():
        validation = "validation" if split == "train" else f"{split}-validation"
        if modulus and kept and not split.endswith("validation") and not pages.get(validation):
            smaller = max(2, min(modulus - 1, kept // _VALIDATION_PAGES))
            _logger.warning(
                "split %s is empty, because it gets 1 in %d pages (chosen by URL) and only %d "
                "pages were kept; run again with --cleaning.validation-modulus %d and a new "
                "--output, or train with --evaluation.loss False",
                validation,
                modulus,
                kept,
                smaller,
            )
