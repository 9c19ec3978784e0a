"""Configuration of a run: `Experiment` and its parts, read from a file and changed by options.

A config is a Python file that defines `experiment`. The file chooses the class of every part, and
command-line options change single fields:

    # configs/my_run.py
    experiment = Experiment(
        model=T5Config(vocab_size=1024, d_model=64),
        objective=Seq2Seq(z_loss=1e-4),
        data=Data(task="tasks.prose:span_corruption", vocabulary="work/vocabulary"),
        optimizer=Adafactor(schedule=InverseSquareRoot()),
        steps=1000,
    )

    >>> load("configs/my_run.py", ["--steps", "20", "--objective.z-loss", "0"]).steps
    20

`save` writes the resolved config into the work directory as JSON, which `load` reads as well.
"""

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Init
from t5x_lite.config.evaluation import (
    EarlyStopping,
    Evaluation,
    Profile,
    check_given,
    check_numbers,
)
from t5x_lite.config.file import encode, from_json, read_config, to_json
from t5x_lite.core import options as option_parser
from t5x_lite.core import project, remote, renames, trees
from t5x_lite.core.devices import compiler_options
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.core.options import Above, Count, OptionalCount, Whole, check_bounds
from t5x_lite.core.sharding import MeshConfig, Mode, Parts
from t5x_lite.core.tracking import Tracking
from t5x_lite.core.trees import ComputeDtype
from t5x_lite.data.config import Data
from t5x_lite.metrics import benchmarks
from t5x_lite.metrics.benchmarks import refuse_test
from t5x_lite.models import heads
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.heads import Head
from t5x_lite.objectives.base import Objective, names_of
from t5x_lite.optim.config import Optimizer, Schedule

MATCHING_FIELDS = (
    *("model", "objective", "heads", "adapters", "train"),
    *("data", "optimizer", "seed", "compute_dtype"),
)
"""Fields that must equal the saved config of a work directory, or the run cannot resume."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Settings for saving checkpoints: period, number to keep and metric of the best checkpoint.

    Attributes:
      period: steps between two checkpoints; the last step always has one.
      minutes: maximum minutes between two checkpoints, measured by process 0, in addition to
        `period`. None saves only by `period`.
      keep: number of newest checkpoints to keep.
      best: metric of the best checkpoint, which is kept in addition to the newest ones, such as
        "validation/loss". A pattern such as "validation/*/score" keeps the best checkpoint of each
        matching metric. None keeps only the newest. Metrics of a test split are rejected.
      best_mode: "max" if high values are better, or "min". None selects min for losses, cross
        entropies, perplexities and errors, else max.
      whole: True to store frozen parameters in each checkpoint. False stores only digests of
        the frozen arrays, and the path of the checkpoint that `init` names. A resumed run keeps the
        setting of its earlier checkpoints.
      timeout: maximum seconds of a save, including the wait for other processes. A longer save
        fails and ends the run.
    """

    period: Count = 1000
    minutes: Annotated[float | None, Above(0)] = None
    keep: Count = 3
    best: str | None = None
    best_mode: benchmarks.Mode | None = None
    whole: bool = False
    timeout: Count = 1200

    def __post_init__(self) -> None:
        check_given("checkpoints", self)
        check_bounds(self, prefix="checkpoints.")
        refuse_test("checkpoints.best", self.best)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """Processes of a run on several hosts; `train.hosts` connects them.

    Nothing is needed on Cloud TPU, under SLURM's srun and under Open MPI's mpirun. Elsewhere, start
    every process with the first three options:

        --hosts.coordinator 10.0.0.1:8476 --hosts.num-processes 4 --hosts.process-id 0

    Attributes:
      coordinator: address "HOST:PORT" of process 0 for the other processes; "" detects the address,
        or starts a run of one process.
      num_processes: number of processes.
      process_id: index of this process, from 0.
      heartbeat: seconds without a heartbeat before a process counts as dead and the run ends.
      timeout: seconds to wait for all processes at the start.
      watchdog: seconds without a finished step before a training run counts as hung; at least
        twenty times the usual step. A hung run ends with the stacks of all threads, and the same
        command resumes from its last checkpoint. Compilation, evaluations and saving do not count.
        0 disables the watchdog.
    """

    coordinator: str = ""
    num_processes: int | None = None
    process_id: int | None = None
    heartbeat: Count = 100
    timeout: Count = 300
    watchdog: Whole = 600

    def __post_init__(self) -> None:
        check_given("hosts", self)
        given = (
            bool(self.coordinator),
            self.num_processes is not None,
            self.process_id is not None,
        )
        if any(given) and not all(given):
            raise InputError(
                "hosts.coordinator, hosts.num_processes and hosts.process_id must be set "
                f"together, got {self.coordinator!r}, {self.num_processes} and {self.process_id}"
            )
        check_bounds(self, prefix="hosts.")
        if self.num_processes is None or self.process_id is None:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"hosts.coordinator must be HOST:PORT, got {self.coordinator!r}")
        if not 0 <= self.process_id < self.num_processes:
            raise InputError(
                f"hosts.process_id is {self.process_id}, but must be from 0 to "
                f"hosts.num_processes - 1 = {self.num_processes - 1}"
            )


def _check_searches(searched: int, saved: int) -> None:
    if searched % saved:
        raise InputError(
            f"data.refresh.period is {searched} steps, but must be a multiple of "
            f"checkpoints.period, which is {saved}; set --checkpoints.period to a divisor of "
            "data.refresh.period"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Configuration of a training run: model, objective, data, optimizer, length and output.

    Attributes:
      model: config of the model architecture.
      objective: the training objective, which computes the loss.
      data: task, vocabulary and shape of the batches.
      optimizer: optimizer, with its learning-rate schedule.
      steps: total optimizer steps of the run, including steps before it was resumed.
      epochs: passes over the training data, instead of `steps`. `train` counts the examples, sets
        `steps`, and scales the schedules to match. None uses `steps`.
      seed: random seed for the initial parameters, dropout and the order of the data.
      workdir: work directory for config, checkpoints and metrics.
      heads: heads to keep without training, in addition to the objective's heads. A run that starts
        from a checkpoint also keeps the checkpoint's heads.
      adapters: adapters to add to the model, which is then frozen.
      train: parameters to train: paths such as heads/classifier or model/encoder, or regular
        expressions that match complete paths. All other parameters are frozen, without weight decay
        and optimizer state. () trains all parameters except heads that the loss does not read; with
        adapters, the model is frozen too. `adapters.train` selects parameters by adapter name
        instead.
      init: checkpoint to initialize parameters from, and the parameters to take.
      compute_dtype: dtype of the activations; parameters stay float32.
      matmul_precision: precision of float32 matrix products in training and evaluation; bfloat16
        products are not affected. On a TPU, "default" uses one bfloat16 pass, "high" three and
        "highest" six, which equals float32. On a GPU, "default" and "high" use TF32.
      log_period: steps between two lines of training metrics.
      checkpoints: schedule of checkpoints, and rules for keeping them.
      evaluation: settings and schedule of the evaluation.
      mesh: device mesh.
      microbatches: number of microbatches of a batch; more microbatches need less memory. The
        gradient equals the gradient of the complete batch.
      tokens_per_part: maximum tokens per device and microbatch, padding included, instead of
        `microbatches`. Each batch shape uses as few microbatches as possible. None uses
        `microbatches`.
      find_batch_size: True to double `microbatches` at the start of a run until the compiled step
        fits in a device's memory; the batch and its gradient do not change, except for other
        dropout masks.
      microbatch_mode: gradient of contrastive losses over several microbatches. "cached" stores the
        vectors and runs each microbatch twice (gradient caching). "recompute" differentiates
        through the loop over microbatches. The gradients are equal.
      hosts: processes of a run on several hosts.
      profile: steps to trace with JAX's profiler; traces go to profile/ in the work directory.
      stop_early: criterion for ending training before `steps`.
      tracking: trackers of metrics in addition to the work directory's metrics.jsonl.
      xla: XLA compiler options for the train step, as KEY=VALUE without dashes, separated by
        spaces. Keys are names from XLA_FLAGS, and on a TPU also from LIBTPU_INIT_ARGS.
      compilation_cache: directory that caches compiled programs for later runs; "" keeps JAX's
        setting.
    """

    model: ModelConfig
    objective: Objective
    data: Data
    optimizer: Optimizer
    steps: Count
    epochs: Annotated[float | None, Above(0)] = None
    seed: Whole = 0
    workdir: str = ""
    heads: tuple[Head, ...] = ()
    adapters: Adapters = dataclasses.field(default_factory=Adapters)
    train: tuple[str, ...] = ()
    init: Init = dataclasses.field(default_factory=Init)
    compute_dtype: ComputeDtype = "float32"
    matmul_precision: Literal["default", "high", "highest"] = "default"
    log_period: Count = 10
    checkpoints: Checkpoints = dataclasses.field(default_factory=Checkpoints)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    microbatches: Count = 1
    tokens_per_part: OptionalCount = None
    find_batch_size: bool = False
    microbatch_mode: Mode = "cached"
    hosts: Hosts = dataclasses.field(default_factory=Hosts)
    profile: Profile = dataclasses.field(default_factory=Profile)
    stop_early: EarlyStopping = dataclasses.field(default_factory=EarlyStopping)
    tracking: Tracking = dataclasses.field(default_factory=Tracking)
    xla: tuple[str, ...] = ()
    compilation_cache: str = ""

    def __post_init__(self) -> None:
        for name, base in _PARTS.items():
            part = getattr(self, name)
            if not isinstance(part, base):
                raise InputError(
                    f"config field {name} must be of type {base.__name__}, got {part!r}"
                )
        for head in self.heads:
            if not isinstance(head, Head):
                raise InputError(f"each entry of heads must be of type Head, got {head!r}")
        heads.by_name(self.heads)
        if self.train and self.adapters.train:
            raise InputError(
                f"train ({', '.join(self.train)}) and adapters.train "
                f"({', '.join(self.adapters.train)}) both select the parameters to train; set "
                "only one of them"
            )
        for pattern in self.train:
            trees.check("train", pattern)
        check_given("", self)
        check_bounds(self)
        check_numbers("", self)
        layouts = self.objective.layouts
        if any(isinstance(layout, str) for layout in layouts):
            raise InputError(
                f"objective {type(self.objective).__name__}: layouts must be classes of "
                f"t5x_lite.layouts, such as (layouts.Encoder,), got {layouts}"
            )
        if layouts and not isinstance(self.data.layout, layouts):
            raise InputError(
                f"objective {type(self.objective).__name__} needs data.layout "
                f"{names_of(layouts)}, got {self.data.layout.name}"
            )
        reason = self.objective.unpackable or self.adapters.unpackable
        if self.data.pack and reason:
            raise InputError(
                f"{reason}, but data.pack is True; set --data.pack False for one document per "
                "example"
            )
        _check_searches(self.data.refresh.period, self.checkpoints.period)
        _ = self.parts
        end = getattr(self.optimizer.schedule, "total_steps", None)
        first = self.optimizer.first_step
        if end is not None and self.steps + first > end:
            after = f" after optimizer.schedule_offset {first}" if first else ""
            raise InputError(
                f"the run has {self.steps} steps{after}, but the schedule ends at step {end}; "
                "increase --optimizer.schedule.total-steps"
            )
        over = self.optimizer.unfreezing.total_steps
        if over not in (0, self.steps):
            raise InputError(
                f"optimizer.unfreezing.total_steps is {over}, but the run has {self.steps} steps; "
                f"set --optimizer.unfreezing.total-steps {self.steps}"
            )
        compiler_options(self.xla)
        for model in (self.model, *self.objective.models().values()):
            model.check_precision(self.matmul_precision, dtype=self.compute_dtype)
            if self.data.pack and getattr(model, "one_text_rows", False):
                raise InputError(
                    "model.one_text_rows needs one text per example, but data.pack is True; "
                    "set --data.pack False, or --model.one-text-rows False"
                )

    @property
    def parts(self) -> Parts:
        """Rule that divides a batch into microbatches."""
        return Parts(
            count=self.microbatches, tokens=self.tokens_per_part, mode=self.microbatch_mode
        )

    @property
    def trained(self) -> tuple[str, ...]:
        """Paths of the parameters to train, or () for all parameters."""
        return self.train or self.adapters.trained


_PARTS: dict[str, type] = {
    "model": ModelConfig,
    "objective": Objective,
    "data": Data,
    "optimizer": Optimizer,
    "adapters": Adapters,
    "init": Init,
    "checkpoints": Checkpoints,
    "evaluation": Evaluation,
    "mesh": MeshConfig,
    "hosts": Hosts,
    "profile": Profile,
    "stop_early": EarlyStopping,
    "tracking": Tracking,
}


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    prog: str = "t5x-lite train CONFIG",
    other_options: Iterable[str] = (),
) -> Experiment:
    """Read an experiment from a config file and apply command-line options to it.

    The config's project root becomes importable: see `config.file.read_config`.

    Args:
      path: a Python file that defines `experiment`, or a config.json that `save` wrote.
      overrides: options and values, such as ["--steps", "20"]. ["--model", "init"] takes the
        model's family and sizes from the checkpoint of --init. "--help" prints the options and
        raises SystemExit(0).
      prog: name of the program in the help.
      other_options: options of the command itself, suggested if an unknown option is similar.

    Raises:
      InputError: if the file is missing or has an error, or an option is unknown or has a wrong
        value.
    """
    experiment = read_config(path)
    if not isinstance(experiment, Experiment):
        kind = type(experiment).__name__
        raise InputError(f"{path}: the experiment must be an Experiment, got {kind}")
    return with_options(experiment, overrides, prog=prog, other_options=other_options)


def with_options(
    experiment: Experiment,
    overrides: Sequence[str],
    *,
    prog: str = "t5x-lite train CONFIG",
    other_options: Iterable[str] = (),
) -> Experiment:
    """Return the experiment with values changed by command-line options; see `load`."""
    if not overrides:
        return experiment
    options = _current_options(overrides)
    options, of_init = _without_model_init(options)
    if of_init:
        experiment = _with_model_of_init(experiment, options)
    experiment = _with_steps_of(experiment, options)
    try:
        with project.trusting_names():
            changed, _ = option_parser.parse(
                Experiment, options, prog=prog, default=experiment, other_options=other_options
            )
    except option_parser.OptionError as error:
        raise InputError(str(_cause(error) or error)) from error
    return changed


def _current_options(overrides: Sequence[str]) -> list[str]:
    found = []
    for option in overrides:
        name, equals, value = option.partition("=")
        if new := renames.OPTIONS.get(name.replace("_", "-")):
            raise InputError(f"option {name} was renamed to {new}")
        if name in renames.PARTS:
            raise InputError(
                f"option {name} does not exist; set {renames.PARTS[name]} in the config file"
            )
        found.append(f"--init.checkpoint{equals}{value}" if name == "--init" else option)
    return found


def _with_steps_of(experiment: Experiment, options: Sequence[str]) -> Experiment:
    steps, epochs = _value_of("--steps", options), _value_of("--epochs", options)
    if steps is None or epochs == "None":
        return experiment
    if epochs is not None:
        raise InputError(
            f"--steps {steps} and --epochs {epochs} both set the length of the run; pass "
            "only one of them"
        )
    if experiment.epochs is None or not (steps.isdecimal() and 0 < len(steps) < 19 and int(steps)):
        return experiment
    fixed = option_parser.given_options(options)
    return dataclasses.replace(with_length(experiment, int(steps), fixed=fixed), epochs=None)


_FEWEST_EVALUATIONS = 10
"""Number of evaluations and checkpoints that a shortened run keeps, if it had more."""


def with_length(
    experiment: Experiment, steps: int, *, fixed: Iterable[str] = frozenset()
) -> Experiment:
    """Change the number of steps of an experiment, and scale its schedules to match.

    A warm-up keeps its fraction of the steps, and a decay ends at the last step. In a shorter run,
    the periods of checkpoints and evaluations shrink too, but to no less than a tenth of the run.

    Args:
      experiment: the config.
      steps: new number of steps.
      fixed: options that the user set, such as "--optimizer.schedule.warmup-steps"; they do not
        change.
    """
    fixed = frozenset(fixed)
    if steps == experiment.steps:
        return experiment
    ratio = steps / experiment.steps

    def longer(optimizer: Optimizer, where: str) -> Optimizer:
        first = optimizer.first_step
        schedule = _of_length(
            *(optimizer.schedule, ratio), first=first, where=f"{where}.schedule", fixed=fixed
        )
        over = steps if optimizer.unfreezing.total_steps else 0
        unfreezing = dataclasses.replace(optimizer.unfreezing, total_steps=over)
        return dataclasses.replace(optimizer, schedule=schedule, unfreezing=unfreezing)

    def period(before: int, name: str) -> int:
        if f"--{name}.period" in fixed or ratio > 1 or experiment.data.refresh.period:
            return before
        return min(before, max(1, round(before * ratio), -(-steps // _FEWEST_EVALUATIONS)))

    objective = experiment.objective
    others = {
        field.name: longer(value, f"--objective.{field.name.replace('_', '-')}")
        for field in dataclasses.fields(objective)
        if isinstance(value := getattr(objective, field.name), Optimizer)
    }
    checkpoints, evaluation = experiment.checkpoints, experiment.evaluation
    return dataclasses.replace(
        experiment,
        steps=steps,
        optimizer=longer(experiment.optimizer, "--optimizer"),
        objective=dataclasses.replace(objective, **others) if others else objective,
        checkpoints=dataclasses.replace(
            checkpoints, period=period(checkpoints.period, "checkpoints")
        ),
        evaluation=dataclasses.replace(evaluation, period=period(evaluation.period, "evaluation")),
    )


def _of_length(
    schedule: Schedule, ratio: float, *, first: int, where: str, fixed: frozenset[str]
) -> Schedule:
    """Return a learning-rate schedule with its numbers of steps scaled by `ratio`."""
    changed: dict[str, Any] = {}
    names = [field.name for field in dataclasses.fields(schedule)]
    for name in ("body", "then"):
        if name in names:
            inner = getattr(schedule, name)
            changed[name] = _of_length(
                *(inner, ratio), first=first, where=f"{where}.{name}", fixed=fixed
            )
    ends = "total_steps" in names
    if ends and f"{where}.total-steps" not in fixed:
        before: int = schedule.total_steps  # pyright: ignore[reportAttributeAccessIssue]
        changed["total_steps"] = max(1, first + math.ceil((before - first) * ratio - 1e-9))
    ramp = "warmup_steps" if ends else "steps"
    option = f"{where}.{ramp.replace('_', '-')}"
    if ramp in names and option not in fixed and (before := getattr(schedule, ramp)):
        most = changed.get("total_steps", getattr(schedule, "total_steps", 1 << 62)) - 1
        changed[ramp] = min(most, max(0 if ends else 1, round(before * ratio)))
    return dataclasses.replace(schedule, **changed) if changed else schedule


_MODEL_OPTION, _INIT = "--model", "init"
_OF_TRAINING = (
    "dropout_rate",
    "attention_dropout_rate",
    "remat",
    "attention",
    "attention_block",
    "one_text_rows",
)
"""Model fields that `--model init` takes from the config, not from the checkpoint."""


def _without_model_init(options: Sequence[str]) -> tuple[list[str], bool]:
    rest: list[str] = []
    values: list[str] = []
    remaining = iter(options)
    for option in remaining:
        name, equals, value = option.partition("=")
        if name != _MODEL_OPTION:
            rest.append(option)
        else:
            values.append(value if equals else next(remaining, ""))
    if wrong := [value for value in values if value != _INIT]:
        raise InputError(
            f"--model must be init, got {wrong[0]!r}; pass --model init to use the config of the "
            "--init checkpoint's model, or --model.FIELD VALUE to change one field"
        )
    return rest, bool(values)


def _with_model_of_init(experiment: Experiment, options: Sequence[str]) -> Experiment:
    """Return the experiment with the model's family and sizes from the checkpoint in `init`.

    If the checkpoint is missing, use the config in the work directory. Dropout and attention
    settings of the config are kept if the family has these fields.
    """
    checkpoint = _value_of("--init.checkpoint", options) or experiment.init.checkpoint
    if not checkpoint:
        raise InputError(
            "--model init reads the model from the checkpoint of --init, but --init is not "
            "set; pass --init CHECKPOINT"
        )
    number = _value_of("--init.step", options) or experiment.init.step
    try:
        number = None if number in (None, "None") else int(number)
    except ValueError as error:
        raise InputError(f"--init.step must be a whole number, got {number!r}") from error
    workdir = _value_of("--workdir", options) or experiment.workdir
    try:
        step = checkpointing.find_step(checkpoint, step=number)
    except InputError:
        saved = begun_with(checkpoint, workdir)
        if saved is None:
            raise
    else:
        saved = _saved_at(step / "files" / checkpointing.CONFIG_FILE)
    fields = {field.name for field in dataclasses.fields(saved.model)}
    own = {
        name: getattr(experiment.model, name)
        for name in _OF_TRAINING
        if name in fields and hasattr(experiment.model, name)
    }
    return dataclasses.replace(experiment, model=saved.model.replace(**own))


def begun_with(checkpoint: str, workdir: str) -> Experiment | None:
    """Return the saved config of a work directory if its run started from a given checkpoint."""
    if not workdir:
        return None
    source = remote.open_path(workdir) / checkpointing.CONFIG_FILE
    if not source.is_file():
        return None
    saved = _saved_at(source)
    return saved if _place(saved.init.checkpoint) == _place(checkpoint) else None


def _place(directory: str) -> str:
    return directory.rstrip("/") if "://" in directory else os.path.abspath(directory)


def _saved_at(source: remote.AnyPath) -> Experiment:
    try:
        saved = from_json(source.read_bytes().decode(), source=str(source))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: cannot be read ({error}); use another checkpoint") from error
    if not isinstance(saved, Experiment):
        raise InputError(
            f"{source}: expected the config of an Experiment, got a {type(saved).__name__}"
        )
    return saved


def _value_of(option: str, options: Sequence[str]) -> str | None:
    found = None
    for at, each in enumerate(options):
        name, equals, value = each.partition("=")
        if name.replace("_", "-") == option:
            found = value if equals else next(iter(options[at + 1 :]), None)
    return found


def save(experiment: Experiment, path: str | Path) -> None:
    """Write the experiment as a JSON file that `load` can read."""
    content = to_json(experiment).encode()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def check_same_experiment(saved: Experiment, current: Experiment, workdir: str | Path) -> None:
    """Raise InputError if a work directory contains a run of a different config.

    The error lists each field of MATCHING_FIELDS that differs, with both values.
    """
    found = differences(saved, current, fields=MATCHING_FIELDS)
    if found:
        raise InputError(
            f"work directory {workdir} belongs to another experiment: {', '.join(found)}; use "
            "another --workdir or the same settings"
        )


def differences(saved: Experiment, current: Experiment, *, fields: Sequence[str]) -> list[str]:
    """Return a message for each field that differs between two configs."""
    found: list[str] = []
    for name in fields:
        there, here = (encode(_resolved(part, name), where=name) for part in (saved, current))
        found += _differences(name, there, here)
    return found


def unequal(first: Any, other: Any, *, where: str = "") -> list[str]:
    """Return a message for each difference between two JSON values."""
    pairs: list[tuple[str, Any, Any]]
    if isinstance(first, dict) and isinstance(other, dict):
        pairs = [(key, first.get(key), other.get(key)) for key in dict.fromkeys([*first, *other])]
    elif isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(first, other, strict=True))]
    else:
        return [] if first == other else [f"{where} ({_shown(first)} and {_shown(other)})"]
    dot = "." if where else ""
    return [each for key, a, b in pairs for each in unequal(a, b, where=f"{where}{dot}{key}")]


def _resolved(experiment: Experiment, name: str) -> Any:
    if name == "adapters":
        return experiment.adapters.canonical()
    if name != "objective":
        return getattr(experiment, name)
    return experiment.objective.resolved(heads.by_name(experiment.heads))


def _differences(name: str, there: Any, here: Any) -> list[str]:
    if isinstance(there, dict) and isinstance(here, dict) and there["type"] == here["type"]:
        return [
            difference
            for key in dict.fromkeys([*there, *here])
            for difference in _differences(f"{name}.{key}", there.get(key), here.get(key))
        ]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = enumerate(zip(there, here, strict=True))
        return [each for i, (a, b) in pairs for each in _differences(f"{name}.{i}", a, b)]
    if there == here:
        return []
    return [f"{name} is {_shown(there)} in the saved config and {_shown(here)} now"]


def _shown(node: Any) -> str:
    if isinstance(node, list) and any(isinstance(each, dict) for each in node):
        return f"[{', '.join(map(_shown, node))}]"
    if not isinstance(node, dict):
        return repr(node)
    return node["value"] if node["type"] == "float" else node["type"].partition(":")[2]


def _cause(error: BaseException | None) -> InputError | None:
    """Return the InputError inside another exception, or None."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error
