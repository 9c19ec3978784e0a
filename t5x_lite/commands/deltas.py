"""Commands that combine, merge, analyze and extend checkpoints.

compose and merge work on deltas: adapters, task vectors and other changes of a base model. fisher
and heads write these files:

    work/rte_fisher/params/fisher/model/...       Fisher diagonal of each array, float32
    work/rte_fisher/files/fisher.json             checkpoint, number of examples, kind of labels
    work/pruned/params/adapters/heads/...         head masks of 0 and 1, float32 [N, H]
    work/pruned/files/heads.json                  importance of each head, fraction of kept heads
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Destination,
    Modules,
    Natural,
    Number,
    OptionalDirectory,
    Positive,
    Source,
    Step,
)
from t5x_lite.core.options import In, OptionError, did_you_mean
from t5x_lite.core.project import trusting_checkpoints

if TYPE_CHECKING:
    import numpy as np

    from t5x_lite.adapters.delta import Delta, Module
    from t5x_lite.core.trees import Params
    from t5x_lite.inference.loading import Loaded
    from t5x_lite.objectives.learner import Learner

Expression = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXPRESSION")]
Named = Annotated[Sequence[str], tyro.conf.arg(metavar="NAME=DIR [NAME=DIR ...]")]
_MASKS = "heads"
"""Name of the adapter that the command `heads` writes."""
_POSITIONS = "model/embedding/position"

_logger = logging.getLogger(__name__)


@command
def compose(
    expression: Expression,
    destination: Destination,
    *,
    delta: Named,
    fisher: Named = (),
    base: OptionalDirectory = None,
    allow_other_base: bool = False,
    trust_project: bool = False,
) -> None:
    """Add, subtract and merge adapters, task vectors and other deltas of one base model.

    An example of an expression is 'ties(a, b, density=0.2) - 0.5 * c'. Its functions are linear,
    average, svd, ties, dare, fisher, sparsify, factor, materialize and without_heads.

    Example:
        t5x-lite compose "0.7 * rte + 0.3 * mnli" work/both --delta rte=work/rte mnli=work/mnli

    Args:
      expression: arithmetic of delta names, numbers, + - * / and functions, such as "a - 0.5 * b".
      destination: output directory of the composed delta, which must be new or empty.
      delta: name and directory of each delta in the expression, as NAME=DIR. DIR has a delta or a
        run that trained adapters, or if --base is given, any run.
      fisher: Fisher diagonal of each delta in fisher(...), as NAME=DIR, with the delta's name and a
        directory written by `t5x-lite fisher`.
      base: checkpoint that all deltas were trained from; default: the base recorded in the deltas.
      allow_other_base: use --base even if a different base was recorded; the log then has a
        warning.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the expression or a delta is invalid, the bases differ, or the output exists.
    """
    _check_base(base, allowed=allow_other_base)
    from t5x_lite.adapters.grammar import Names, check, evaluate, names_in
    from t5x_lite.inference import delta_files

    with trusting_checkpoints(trust_project):
        places = _named(delta, option="--delta")
        check(expression, places)
        if unused := sorted(places.keys() - set(names_in(expression))):
            raise InputError(
                f"--delta {unused[0]} is not used in the expression {expression!r}; remove the "
                "option or use the name"
            )
        fisher_places = _named(fisher, option="--fisher")
        if unknown := [name for name in fisher_places if name not in places]:
            raise InputError(
                f"--fisher names the delta {unknown[0]}, but no --delta option has this "
                f"name{did_you_mean(unknown[0], places)}"
            )
        diagonals = {name: _diagonal(where) for name, where in fisher_places.items()}
        _refuse_existing(destination)
        opened = {
            name: delta_files.open_delta(where, base=base, allow_other_base=allow_other_base)
            for name, where in places.items()
        }

        def materialised(name: str) -> "Delta":
            return delta_files.materialised(opened[name], by_option=base is not None)

        names = Names({name: one.delta for name, one in opened.items()}, diagonals, materialised)
        made = evaluate(expression, names)
        files = delta_files.files_for(made, list(opened.values()))
        delta_files.save(made, destination, files=files)
    _logger.info(
        "wrote the delta %s (contents: %s; size: %s)",
        destination,
        _contents(made),
        _in_bytes(made.nbytes),
    )


def _check_base(base: str | None, *, allowed: bool) -> None:
    if allowed and base is None:
        raise OptionError("--allow-other-base needs --base DIR")


def _named(pairs: Sequence[str], *, option: str) -> dict[str, str]:
    places: dict[str, str] = {}
    for pair in pairs:
        name, equals, directory = pair.partition("=")
        if not (equals and name.isidentifier() and directory):
            raise InputError(f"{option} must be NAME=DIR, such as a=work/a, got {pair!r}")
        if name in places:
            raise InputError(
                f"{option} has the name {name} twice; give each directory a different name"
            )
        places[name] = directory
    return places


def _refuse_existing(destination: str | Path) -> None:
    target = Path(destination)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"destination {destination} exists and is not empty; give a new directory")


def _diagonal(where: str) -> Mapping[str, Any]:
    from t5x_lite.checkpoints import items
    from t5x_lite.core.remote import local_path
    from t5x_lite.inference.loading import find_step

    source = Path(find_step(local_path(where, what="Fisher diagonal")))
    items.verify(source, "params", "files")
    arrays = items.lazy_params(source / "params")
    start = "fisher/"
    diagonal = {p.removeprefix(start): a.read() for p, a in arrays.items() if p.startswith(start)}
    if not diagonal:
        raise InputError(
            f"directory {where} contains no Fisher diagonal; give a directory that `t5x-lite "
            "fisher` wrote"
        )
    return diagonal


def _contents(delta: "Delta") -> str:
    number, named = len(delta.parts), ", ".join(_titled(module) for module in delta.config)
    arrays = f"{number:,} changed array{'' if number == 1 else 's'}"
    return f"{arrays} and the adapter{'s' * (len(delta.config) > 1)} {named}" if named else arrays


def _titled(module: "Module") -> str:
    from t5x_lite.adapters.delta_merging import Union

    members = module.members if isinstance(module, Union) else ()
    kinds = " and ".join(type(each).__name__ for each in members) or type(module).__name__
    return f"{module.name} ({kinds})"


def _in_bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"


@command
def merge(
    source: Source,
    destination: Destination,
    *,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    dtype: Literal["float32", "bfloat16"] = "float32",
    allow_other_base: bool = False,
    trust_project: bool = False,
) -> None:
    """Merge a delta, or the adapters of a run, into the base model, and write a plain checkpoint.

    The written checkpoint can be given to predict, score, evaluate, train --init and export.

    Example:
        t5x-lite merge work/rte work/merged

    Args:
      source: directory of a delta or of a run that trained adapters, or if --base is given, of any
        run.
      destination: output directory, which must be new or empty.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: checkpoint that the source was trained from; default: the base recorded in the source.
      adapters: names of the adapters to merge; default: all adapters.
      dtype: data type of the written weights; for bfloat16, the log shows the rounding error.
      allow_other_base: use --base even if a different base was recorded; the log then has a
        warning.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the source or its base is missing or damaged, the base is not the recorded one,
        or the destination exists; no output is left behind then.
    """
    _check_base(base, allowed=allow_other_base)
    from t5x_lite.checkpoints.items import write_step
    from t5x_lite.core.files import new_directory
    from t5x_lite.inference import delta_files

    with trusting_checkpoints(trust_project), new_directory(destination) as directory:
        opened = delta_files.open_delta(
            source, step=step, base=base, use=adapters.use, allow_other_base=allow_other_base
        )
        where, arrays = delta_files.recorded_base(opened, by_option=base is not None)
        files = opened.files or delta_files.base_files(where, opened.delta)
        loss = delta_files.Rounding()
        merged = delta_files.merged(opened, arrays, files, dtype=dtype, loss=loss)
        write_step(directory, files, merged)
    if opened.delta.config:
        _logger.info(
            "adapter %s cannot be merged into the weights and is stored as an adapter of "
            "checkpoint %s, next to the merged weights",
            ", ".join(_titled(module) for module in opened.delta.config),
            destination,
        )
    _logger.info(
        "wrote %s: checkpoint %s merged with %s", destination, where, _contents(opened.delta)
    )
    if dtype == "bfloat16":
        _logger.info("%s: %s", destination, loss.summary())


@command
def fisher(
    source: Source,
    destination: Destination,
    *,
    examples: Positive = 1024,
    labels: Literal["empirical", "expected"] = "empirical",
    step: Step = None,
    trust_project: bool = False,
) -> None:
    """Compute the Fisher diagonal, the importance of each weight, for compose 'fisher(a, b)'.

    The Fisher diagonal is the mean squared gradient of each weight over training examples, computed
    one example at a time.

    Example:
        t5x-lite fisher work/rte work/rte_fisher --examples 1024

    Args:
      source: work directory or checkpoint directory of the model.
      destination: output directory, which must be new or empty.
      examples: number of training examples to compute the gradients on.
      labels: labels in the loss: "empirical" uses the labels of the data, "expected" averages over
        all classes of a classifier, weighted by their predicted probabilities.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the checkpoint or its data is missing, expected labels are requested without a
        classifier, or the destination exists.
    """
    from t5x_lite.checkpoints.items import write_step
    from t5x_lite.core.files import new_directory
    from t5x_lite.core.trees import LazyArray
    from t5x_lite.core.workers import counting
    from t5x_lite.evaluate.results import classes_of, fisher_diagonal
    from t5x_lite.inference.loading import Loaded

    # Examples are sampled in the same way as in training, with the run's seed.
    with trusting_checkpoints(trust_project), new_directory(destination) as directory:
        loaded = Loaded.from_checkpoint(str(source), step=step)
        learner, params = _merged_learner(loaded)
        classes = classes_of(learner) if labels == "expected" else None
        rows = _rows(loaded, examples=examples)
        with counting("measuring", unit="examples", total=examples, steps=True):
            found = fisher_diagonal(learner.loss, params, rows, classes=classes)
        arrays = {
            f"fisher/{path}": LazyArray(x.shape, x.dtype, lambda x=x: x)
            for path, x in found.items()
        }
        said = {"checkpoint": str(loaded.directory), "examples": examples, "labels": labels}
        write_step(directory, {"fisher.json": json.dumps(said, indent=1).encode()}, arrays)
    _logger.info("%s: wrote the %s Fisher diagonal over %d examples", destination, labels, examples)


def _merged_learner(loaded: "Loaded") -> "tuple[Learner, Params]":
    from t5x_lite.adapters.delta import Delta
    from t5x_lite.core import trees
    from t5x_lite.inference.delta_files import plain
    from t5x_lite.inference.loading import learner_of

    params = dict(loaded.params)
    if not loaded.learner.adapters:
        return loaded.learner, params
    parts, rest = loaded.learner.delta_form(params.get("adapters", {}))
    names = {adapter.name for adapter in rest}
    modules = {name: x for name, x in params.pop("adapters", {}).items() if name in names}
    merged = Delta(parts).apply(params)
    learner = learner_of(plain(loaded.experiment, rest))
    return learner, {**trees.overlaid(params, merged), **({"adapters": modules} if modules else {})}


def _rows(loaded: "Loaded", *, examples: int) -> Any:
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Fixed

    data = dataclasses.replace(loaded.experiment.data, batch_size=1, pack=False, batches=Fixed())
    rows = data_batches.train_batches(data, loaded.vocabulary, seed=loaded.experiment.seed)
    return itertools.islice(rows, examples)


@command
def heads(
    source: Source,
    destination: Destination,
    *,
    examples: Positive = 1024,
    keep: Annotated[Number, In(0, 1, "(]")] = 1.0,
    step: Step = None,
    trust_project: bool = False,
) -> None:
    """Rank attention heads by importance, and write an adapter that masks the least important.

    The importance of a head is the mean absolute gradient of its mask over training examples,
    divided by the L2 norm of all importances in its layer. `t5x-lite merge` writes the pruned
    model.

    Example:
        t5x-lite heads work/sst2 work/sst2_half --keep 0.5 --examples 1024

    Args:
      source: work directory or checkpoint directory of a model without adapters.
      destination: output directory, which must be new or empty.
      examples: number of training examples to compute the gradients on.
      keep: fraction of attention heads to keep, above 0; 1 only computes their importance.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the checkpoint or its data is missing, the checkpoint has adapters or shared
        arrays, or the destination exists; no output is left behind then.
    """
    from t5x_lite.adapters.base import ADAPTERS
    from t5x_lite.adapters.config import Adapters
    from t5x_lite.checkpoints import reading as checkpointing
    from t5x_lite.checkpoints.init import BASE_FILE, Base, Init
    from t5x_lite.checkpoints.items import write_step
    from t5x_lite.config.file import to_json
    from t5x_lite.core import trees
    from t5x_lite.core.files import new_directory
    from t5x_lite.core.trees import LazyArray
    from t5x_lite.evaluate.results import pruned
    from t5x_lite.inference.delta_files import goes_along
    from t5x_lite.inference.loading import Loaded, learner_of, read_experiment
    from t5x_lite.interop.encoder_checkpoints import refuse_views

    with trusting_checkpoints(trust_project), new_directory(destination) as directory:
        loaded = Loaded.from_checkpoint(str(source), step=step)
        where, learner = loaded.directory, loaded.learner
        if learner.adapters:
            raise InputError(
                f"checkpoint {where} has adapters, but `t5x-lite heads` requires a model without "
                "adapters; merge the adapters by `t5x-lite merge` and give the merged checkpoint"
            )
        refuse_views(where, learner.views)
        files = checkpointing.step_files(where)
        made = dataclasses.replace(
            read_experiment(where, files),
            adapters=Adapters(add=(f"{_MASKS} = heads()",)),
            init=Init(checkpoint=str(where)),
            train=(),
        )
        importance = _importance(loaded, learner_of(made), examples=examples)
        masks = pruned(importance, keep=keep)
        left = list(trees.flatten(loaded.params))
        base = Base.of(
            loaded.params, dict(zip(left, left, strict=True)), base=where, steps=directory.parent
        )
        told = {
            "checkpoint": str(where),
            "examples": examples,
            "keep": keep,
            "importance": {p.removesuffix("/mask"): x.tolist() for p, x in importance.items()},
        }
        contents = {
            **{name: content for name, content in files.items() if goes_along(name)},
            checkpointing.CONFIG_FILE: to_json(made).encode(),
            BASE_FILE: base.content(),
            "heads.json": json.dumps(told, indent=1).encode(),
        }
        arrays = {
            f"{ADAPTERS}{_MASKS}/{path}": LazyArray(mask.shape, mask.dtype, lambda mask=mask: mask)
            for path, mask in masks.items()
        }
        write_step(directory, contents, arrays)
    total = sum(mask.size for mask in masks.values())
    kept = round(sum(float(mask.sum()) for mask in masks.values()))
    _logger.info(
        "%s: kept the most important %d of %d attention heads, by gradients on %d examples",
        destination,
        kept,
        total,
        examples,
    )


def _importance(loaded: "Loaded", learner: "Learner", *, examples: int) -> "dict[str, np.ndarray]":
    import jax
    import jax.numpy as jnp

    from t5x_lite.core.workers import counting
    from t5x_lite.evaluate.results import head_importance

    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), learner.shapes["adapters"])
    rows = _rows(loaded, examples=examples)
    params = {**loaded.params, "adapters": ones}
    with counting("measuring", unit="examples", total=examples, steps=True):
        return head_importance(learner.loss, params, rows, name=_MASKS)


@command
def extend(
    source: Source,
    destination: Destination,
    *,
    positions: Positive,
    new_rows: Literal["repeat", "random"] = "repeat",
    seed: Natural = 0,
    step: Step = None,
    trust_project: bool = False,
) -> Path:
    """Add position embeddings to an encoder, so that it accepts longer texts.

    The existing position embeddings do not change, so texts up to the former maximum length keep
    their hidden states.

    Example:
        t5x-lite extend work/xlmr work/xlmr_long --positions 8192

    Args:
      source: work directory or checkpoint directory of the encoder.
      destination: output directory, which must be new or empty.
      positions: new maximum number of tokens of a text, such as 8192.
      new_rows: initialization of the new position embeddings: "repeat" copies the existing
        embeddings, "random" samples new ones.
      seed: random seed of --new-rows random.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the checkpoint has no position embeddings, already accepts texts of this
        length, or has adapters; or if the destination exists.
    """
    import numpy as np

    from t5x_lite.checkpoints import items
    from t5x_lite.checkpoints import reading as checkpointing
    from t5x_lite.checkpoints.items import write_step
    from t5x_lite.config.file import to_json
    from t5x_lite.core import trees
    from t5x_lite.core.files import new_directory
    from t5x_lite.core.trees import LazyArray
    from t5x_lite.inference.delta_files import goes_along
    from t5x_lite.inference.loading import find_step, learner_of, read_experiment
    from t5x_lite.models.encoder import is_encoder
    from t5x_lite.objectives.learner import views_of

    with trusting_checkpoints(trust_project):
        where = Path(find_step(source, step=step))
        items.verify(where, "params", "files")
        files = checkpointing.step_files(where)
        experiment = read_experiment(where, files)
        model: Any = experiment.model
        if not is_encoder(model) or not model.position_rows:
            raise InputError(
                f"checkpoint {where} has no absolute position embeddings, so it cannot be extended"
            )
        first, rows = model.first_position, model.position_rows
        if positions + first <= rows:
            raise InputError(
                f"checkpoint {where} already accepts texts of {rows - first} tokens, but "
                f"--positions is {positions}; give a larger number"
            )
        if experiment.adapters.modules or views_of(model, experiment.objective):
            raise InputError(
                f"checkpoint {where} has adapters or shared arrays, which `t5x-lite extend` does "
                "not support; merge the adapters by `t5x-lite merge`, or export and import the "
                "model"
            )
        longer = dataclasses.replace(
            experiment,
            model=model.replace(max_positions=positions + first),
            init=type(experiment.init)(),
        )
        shapes = {p: tuple(x.shape) for p, x in trees.flatten(learner_of(longer).shapes).items()}
        arrays = checkpointing.lazy_params(where)
        changed = [path for path, shape in shapes.items() if shape != arrays[path].shape]
        if changed != [_POSITIONS]:
            raise InputError(
                f"checkpoint {where} cannot be extended, because the maximum length sets the size "
                f"of more arrays than the position embeddings: {', '.join(changed)}"
            )
        old, rng = arrays[_POSITIONS], np.random.default_rng(seed)
        stddev = model.initializer_stddev

        def drawn(shape: tuple[int, int]) -> np.ndarray:
            return stddev * rng.standard_normal(shape).astype(np.float32)

        def table() -> np.ndarray:
            draw = None if new_rows == "repeat" else drawn
            return extended(old.read(), positions + first, first=first, draw=draw)

        arrays = {**arrays, _POSITIONS: LazyArray(shapes[_POSITIONS], old.dtype, table)}
        contents = {
            **{name: content for name, content in files.items() if goes_along(name)},
            checkpointing.CONFIG_FILE: to_json(longer).encode(),
        }
        with new_directory(destination) as directory:
            write_step(directory, contents, {path: arrays[path] for path in shapes})
    _logger.info(
        "%s: extended the maximum length of a text to %d tokens, from %d (new position "
        "embeddings: %s)",
        *(destination, positions, rows - first, new_rows),
    )
    return Path(destination)


def extended(
    table: "np.ndarray",
    rows: int,
    *,
    first: int,
    draw: "Callable[[tuple[int, int]], np.ndarray] | None" = None,
) -> "np.ndarray":
    """Return a position embedding table [rows, D]: the given table [R, D] with rows appended.

        table of 512 + 2 rows, 8,194 wanted:   row 2 + i of the new table = row 2 + (i mod 512)

    Existing rows do not change, so short texts keep their hidden states. BGE-M3's authors do not
    publish how they initialized XLM-R's new rows.

    Args:
      table: existing position embeddings [R, D].
      rows: number of rows of the new table.
      first: row of a text's first token; earlier rows are reserved and not repeated.
      draw: function from a shape to random new rows; None repeats the rows from `first` on.
    """
    import numpy as np

    num = rows - len(table)
    if draw is not None:
        return np.concatenate([table, draw((num, table.shape[1])).astype(table.dtype)])
    places = first + np.arange(len(table) - first, rows - first) % (len(table) - first)
    return np.concatenate([table, table[places]])
