"""`t5x-lite sweep`: train a config with every combination of some settings and seeds.

    t5x-lite sweep CONFIG --grid optimizer.schedule.value=1e-3,3e-4 --seeds 2 --workdir work/sweep

    work/sweep/value=0.001,seed=0/   the work directory of a run
    work/sweep/sweep.json            config, arms (best first), and state and metric of each run

An arm is one combination of the grid's values. All runs train in this process, one after the other,
and memory and compiled programs are freed in between, as for the tasks of `train.benchmarks`. So a
signal saves the current run and ends the sweep. The same command resumes: finished runs are
skipped, and the others continue from their checkpoints. The seeds are in the outer loop, so all
arms can be compared as soon as each has one finished run.

    with Sweep.open(base, arms, seeds=2, workdir="work/sweep") as sweep:
        sweep.train()
        sweep.result()["arms"][0]
        # {"arm": "value=0.001", "settings": {"optimizer.schedule.value": "0.001"},
        #  "n": 2, "mean": 5.21, "sd": 0.03, "runs": [{"seed": 0, "state": "finished", ...}, ...]}

The value of a run is the run's main metric (`inference.loading.Measured`) at its best step.
"""

import contextlib
import dataclasses
import gc
import hashlib
import itertools
import json
import logging
import os
import re
import shlex
import statistics
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_lite import config as configs
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.experiment import with_options
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core import remote, signals
from t5x_lite.core.errors import InputError, Interrupted
from t5x_lite.core.options import did_you_mean, given_options, nearest, option_names
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.tracking import evaluated_steps
from t5x_lite.inference.loading import Measured
from t5x_lite.metrics.benchmarks import Mode
from t5x_lite.train import hosts, training
from t5x_lite.train.restoring import WorkDirectory
from t5x_lite.train.stopping import StopSignals

_logger = logging.getLogger(__name__)

SWEEP_FILE = "sweep.json"
_IDENTITY = (*configs.MATCHING_FIELDS, "steps", "epochs", "init", "evaluation", "stop_early")
_SET_BY = {"seed": "--seeds, and --seed for the first one", "workdir": "--workdir"}
"""Field that a grid cannot have -> options that set it."""
_LONGEST_NAME = 120
_COMMA = re.compile(r""",(?=(?:[^"']|"[^"]*"|'[^']*')*$)""")
"""A comma that is not in quotes."""


class RunsFailed(RuntimeError):
    """Error of a sweep with failed runs; the message names one of these runs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """Combination of settings in a sweep.

    Attributes:
      name: beginning of the names of its run directories, such as "rate=0.001,steps=100".
      settings: config field -> value as text.
      experiment: config with these values, without seed and work directory.
    """

    name: str
    settings: Mapping[str, str]
    experiment: Experiment


def parse_grid(grid: Sequence[str]) -> dict[str, list[str]]:
    """Parse texts NAME=VALUE,VALUE into a dict from field name to values.

    >>> parse_grid(["adapters.add='a = lora(r=8)','b = lora(r=4, alpha=8)'", "steps=10"])
    {"adapters.add": ["'a = lora(r=8)'", "'b = lora(r=4, alpha=8)'"], "steps": ["10"]}
    """
    found: dict[str, list[str]] = {}
    for text in grid:
        name, _, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("_", "-")
        if name in found:
            raise InputError(f"--grid {name} is given twice; list all its values in one --grid")
        found[name] = [value.strip() for value in _COMMA.split(values)]
        if not name or not all(found[name]):
            raise InputError(
                f"--grid {text!r} has an empty name or value; write NAME=VALUE,VALUE, and '' for "
                "an empty text"
            )
    return dict(sorted(found.items()))


def arms_of(
    config: Experiment,
    grid: Sequence[str],
    options: Sequence[str],
    *,
    other_options: Iterable[str] = (),
) -> tuple[Experiment, list[Arm]]:
    """Return the base config of a sweep, and one `Arm` for each combination of settings.

    Args:
      config: config without the options.
      grid: texts NAME=VALUE,VALUE, one for each varied field.
      options: config options of all runs, such as --steps 20.
      other_options: options of the command, to suggest for misspelled options.

    Raises:
      InputError: if an option or a field is unknown, or a value has the wrong type.
    """
    base = with_options(config, options, other_options=other_options)
    values = parse_grid(grid)
    for name in values:
        _check_name(name, base, options)
    short = _short_names(values)
    arms: dict[str, Arm] = {}
    for combination in itertools.product(*values.values()):
        given = dict(zip(values, combination, strict=True))
        try:
            own = [word for name, value in given.items() for word in _option(name, value, base)]
            experiment = with_options(config, [*options, *own])
            if experiment.epochs is not None:
                experiment = training.with_epochs(experiment, options=[*options, *own])
        except ValueError as error:  # InputError, or a quote without its end
            shown = " ".join(f"{name}={value}" for name, value in given.items())
            raise InputError(f"--grid {shown}: {error}") from error
        settings = {name: _text(_leaf(experiment, name), value) for name, value in given.items()}
        name = _directory_name(",".join(f"{short[n]}={v}" for n, v in settings.items()))
        if name in arms:
            raise InputError(
                f"--grid has the combination of values {name} twice; give each value once"
            )
        arms[name] = Arm(name=name, settings=settings, experiment=experiment)
    return base, list(arms.values())


def _check_name(name: str, base: Experiment, options: Sequence[str]) -> None:
    if name in _SET_BY:
        raise InputError(f"--grid cannot vary the field {name}; set this field by {_SET_BY[name]}")
    if f"--{name}" in given_options(options):
        raise InputError(f"--grid and --{name} both set {name}; remove one of them")
    known = [each.removeprefix("--") for each in option_names(base)]
    if name in (*known, "init", "model"):
        return
    parent, _, last = name.rpartition(".")
    siblings = [each for each in known if each.rpartition(".")[0] == parent]
    leaves = {each.rpartition(".")[2]: each for each in known}
    near = nearest(name, siblings) or leaves.get(nearest(last, leaves) or "")
    remedy = f"did you mean {near}?" if near else "t5x-lite train CONFIG --help lists the fields"
    raise InputError(f"--grid {name}: the config has no field {name}; {remedy}")


def _option(name: str, value: str, base: Experiment) -> list[str]:
    if isinstance(_leaf(base, name), tuple):
        return [f"--{name}", *filter(None, shlex.split(value))]
    quoted = value[0] in ("'", '"')
    return [f"--{name}={' '.join(shlex.split(value)) if quoted else value}"]


def _leaf(config: Any, name: str) -> Any:
    """Return the value of a config field by its dotted name."""
    for key in name.replace("-", "_").split("."):
        config = config[int(key)] if isinstance(config, tuple) else getattr(config, key)
    return config


def _text(value: Any, given: str) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return given if dataclasses.is_dataclass(value) else str(value)


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Map dotted names of config fields to their last components, if these are unique."""
    last = [name.rpartition(".")[2] for name in names]
    return {
        name: name if last.count(short) > 1 else short
        for name, short in zip(names, last, strict=True)
    }


def _directory_name(text: str) -> str:
    """Convert a text to a valid file name."""
    name = re.sub(r"[^A-Za-z0-9_.+=,-]+", "_", text)[:_LONGEST_NAME]
    if name == text:
        return name or "config"
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclasses.dataclass(kw_only=True)
class Sweep:
    """Runs of a sweep, stored in one directory.

    Attributes:
      base: config of all runs, without the grid's values.
      arms: combinations of settings, in the order of the grid.
      seeds: number of seeds per combination; the first seed is the seed of `base`.
      directory: directory of the sweep.
      metric: metric that ranks the combinations; None until the first run is finished.
      mode: "max" or "min", the best direction of the metric.
      runs: (combination, seed) -> record of the run in sweep.json.
      error: error of the first run that failed.
    """

    base: Experiment
    arms: Sequence[Arm]
    seeds: int
    directory: AnyPath
    metric: str | None = None
    mode: Mode = "max"
    runs: dict[tuple[str, int], dict[str, Any]] = dataclasses.field(default_factory=dict)
    error: Exception | None = None

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        base: Experiment,
        arms: Sequence[Arm],
        *,
        seeds: int,
        workdir: str,
        metric: str | None = None,
    ) -> "Iterator[Sweep]":
        """Create a sweep, or continue the same sweep in an existing directory, and lock it.

        Raises:
          InputError: if the directory holds other files or another sweep, or is in use.
        """
        hosts.join(base.hosts)
        directory = remote.open_path(workdir)
        sweep = cls(base=base, arms=arms, seeds=seeds, directory=directory, metric=metric)
        earlier = sweep._earlier()
        lock = WorkDirectory(directory, directory if isinstance(directory, Path) else Path())
        try:
            if jax.process_index() == 0:
                directory.mkdir(parents=True, exist_ok=True)
                lock.lock()
            for seed, arm in itertools.product(range(base.seed, base.seed + seeds), arms):
                new = {"seed": seed, "workdir": f"{arm.name},seed={seed}", "state": "waiting"}
                run = earlier.get((arm.name, seed), new)
                saved = checkpointing.saved_steps(sweep._checkpoints(run))
                sweep.runs[arm.name, seed] = run if saved or run["state"] != "finished" else new
            for run in sweep.runs.values():
                if run["state"] == "finished":
                    sweep._measure(run)
            sweep.write()
            yield sweep
        finally:
            for descriptor in lock.locks:
                os.close(descriptor)

    def _earlier(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the run records in the sweep's directory; {} for a new directory."""
        file = self.directory / SWEEP_FILE
        if not file.exists():
            there = self.directory.iterdir() if self.directory.is_dir() else ()
            if not self.directory.exists() or not any(path.name[:1] != "." for path in there):
                return {}
            raise InputError(
                f"--workdir {self.directory} holds other files and no {SWEEP_FILE}; use an empty "
                "directory"
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            config = json.dumps(content["config"])
            arms = {arm["arm"]: arm["settings"] for arm in content["arms"]}
            runs = {(a["arm"], run["seed"]): run for a in content["arms"] for run in a["runs"]}
            _ = [(run["state"], run["workdir"]) for run in runs.values()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} is not a file of `t5x-lite sweep`; use another --workdir"
            ) from error
        saved = from_json(config, source=str(file))
        if differing := configs.differences(saved, self.base, fields=_IDENTITY):
            raise InputError(
                f"--workdir {self.directory} holds a sweep with other settings: "
                f"{', '.join(differing)}; use another --workdir or the same settings"
            )
        own = {arm.name: arm.settings for arm in self.arms}
        last = self.base.seed + self.seeds
        for (name, seed), run in runs.items():
            if own.get(name) != arms[name] or seed >= last:
                raise InputError(
                    f"--workdir {self.directory} holds a sweep with the run {run['workdir']}, but "
                    "the values of --grid and the seeds do not include this run; use another "
                    "--workdir, or add values or seeds"
                )
        return runs

    def train(self) -> None:
        """Train the runs that are not finished; record failed runs and continue.

        Raises:
          Interrupted: if a signal stopped a run; the run is saved first.
        """
        arms = {arm.name: arm.experiment for arm in self.arms}
        for number, ((name, seed), run) in enumerate(self.runs.items(), 1):
            if run["state"] == "finished":
                _logger.info("skipping run %s, which finished earlier", run["workdir"])
                continue
            _logger.info("run %d of %d: %s", number, len(self.runs), run["workdir"])
            run["state"] = "unfinished"
            run.pop("error", None)
            self.write()
            workdir = os.fspath(self.directory / run["workdir"])
            self._train(dataclasses.replace(arms[name], seed=seed, workdir=workdir), run)
            self.write()
            jax.clear_caches()  # the next run compiles its own programs
            gc.collect()

    def _train(self, experiment: Experiment, run: dict[str, Any]) -> None:
        StopSignals.latest = None
        try:
            training.train(experiment)
        except Interrupted:
            raise
        except Exception as error:
            if StopSignals.latest is not None:  # the signal may have caused the error
                raise signals.interruption(StopSignals.latest) from error
            lines = str(error).strip().splitlines() or [""]
            run["state"], run["error"] = "failed", f"{type(error).__name__}: {lines[0]}"
            _logger.error("%s failed: %s", run["workdir"], run["error"])
            _release(error)
            self.error = self.error or error
            return
        run["state"] = "finished"
        self.write()
        StopSignals.end_after_run()
        self._measure(run)

    def _checkpoints(self, run: Mapping[str, Any]) -> AnyPath:
        return self.directory / run["workdir"] / checkpointing.DIRECTORY

    def _measure(self, run: dict[str, Any]) -> None:
        """Store the best step of a finished run, and the metric's value at this step."""
        for key in ("step", "value"):
            run.pop(key, None)
        checkpoints = self._checkpoints(run)
        measured = Measured.of(checkpoints, metric=self.metric)
        if measured is not None:
            self.metric, self.mode = measured.metric, measured.mode
            run["step"] = step = measured.best()
            run["value"] = None if step is None else measured.values[step]
        elif self.metric is not None and not any("value" in one for one in self.runs.values()):
            last = checkpointing.saved_steps(checkpoints)[-1]
            metrics = evaluated_steps(checkpoints.parent, until=last).values()
            names = list(dict.fromkeys(itertools.chain(*metrics)))
            remedy = (
                did_you_mean(self.metric, names) or f"; the run has {', '.join(names) or 'none'}"
            )
            raise InputError(
                f"--metric {self.metric} is not a metric of the run {run['workdir']}{remedy}"
            )

    def result(self) -> dict[str, Any]:
        """Return the metric, and the combinations of settings, best combination first."""
        arms = []
        for arm in self.arms:
            runs = [run for (name, _), run in self.runs.items() if name == arm.name]
            values = [run["value"] for run in runs if run.get("value") is not None]
            arms.append(
                {
                    "arm": arm.name,
                    "settings": dict(arm.settings),
                    "n": len(values),
                    "mean": statistics.fmean(values) if values else None,
                    "sd": statistics.stdev(values) if len(values) > 1 else None,
                    "runs": runs,
                }
            )
        sign = -1 if self.mode == "max" else 1
        arms.sort(key=lambda arm: (not arm["n"], sign * (arm["mean"] or 0.0)))
        return {"metric": self.metric, "mode": self.mode if self.metric else None, "arms": arms}

    def write(self) -> None:
        """Write sweep.json; only the first process writes."""
        if jax.process_index() == 0:
            content = {**self.result(), "config": json.loads(to_json(self.base))}
            data = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            remote.write_whole(self.directory / SWEEP_FILE, data.encode())


def _release(error: BaseException | None) -> None:
    """Free arrays that are referenced by an error's stack frames."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
