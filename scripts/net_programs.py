"""What the compiled train steps cost, as later commits are held against it.

    python scripts/net_programs.py write           # tests/golden/net/programs.json: half an hour
    python scripts/net_programs.py write run/ v5e  # those whose name has one of these in it
    python scripts/net_programs.py print run/      # a line of JSON each, and no file is written

A program is a config's train step, or that of a run of net_goldens.py, for one CPU device: FLOPs,
bytes accessed and temporary bytes, as the compiler counts them. Of the steps in SLICES it is a TPU
slice: the bytes that a device needs, the estimated seconds and the calls of Pallas kernels.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "golden" / "net" / "programs.json"
SLICES = {
    "configs/pretrain/t5_1_1_base.py": "v5e:4x4",
    "configs/pretrain/t5_1_1_xl.py": "v5e:8x8",
    "configs/pretrain/t5_1_1_xxl.py": "v5p:4x4x4",
}
CPU = "cpu:1"


def names() -> list[str]:
    """All programs: "DEVICES CONFIG", "cpu:1 run/NAME", or "cpu:1 drawn/NAME".

    The last are runs with a draw of attention dropout for each query and key, as is the default.
    """
    sys.path.insert(0, str(ROOT))
    from scripts.net_goldens import experiments

    configs = sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "configs").rglob("*.py")
        if path.name != "__init__.py"
    )
    return [
        *(f"{CPU} run/{name}" for name in sorted(experiments())),
        *(f"{CPU} drawn/{name}" for name in ("bert", "deberta")),
        *(f"{CPU} {path}" for path in configs),
        *(f"{topology} {path}" for path, topology in SLICES.items()),
    ]


def _in_a_loop(part: Any) -> Any:
    """A config whose models have their layers in a loop."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    fields = {f.name: _in_a_loop(getattr(part, f.name)) for f in dataclasses.fields(part)}
    return dataclasses.replace(part, **fields | ({"unroll": 1} if "unroll" in fields else {}))


def cpu_figures(name: str) -> dict[str, Any]:
    """A program's figures for one CPU device, as this process compiles it."""
    import jax

    from scripts.net_goldens import experiments, sharing
    from t5x_lite import config
    from t5x_lite.core.sharding import MeshConfig
    from t5x_lite.train.planning import make_sheet

    path = name.removeprefix(f"{CPU} ")
    kind, _, run = path.partition("/")
    experiment = config.load(path) if kind == "configs" else experiments()[run]
    # One draw for all queries, as it was when the first figures were taken.
    experiment = sharing(experiment, kind != "drawn")
    if kind != "configs":  # and layers in a loop, which XLA counts once
        experiment = _in_a_loop(experiment)
    experiment = dataclasses.replace(experiment, mesh=MeshConfig())  # one device, not the slice
    record = make_sheet(experiment, jax.devices("cpu")[:1], asked=CPU).record()
    return {
        "flops": record["compiled_flops"],
        "bytes_accessed": record["compiled_bytes_accessed"],
        "temporaries": record["memory_bytes"]["temporaries"],
    }


def slice_figures(name: str) -> dict[str, Any]:
    """What `t5x-lite plan` says of a config for a slice, in a process of its own.

    Raises:
      RuntimeError: it failed.
    """
    topology, _, path = name.partition(" ")
    line = [sys.executable, "-m", "t5x_lite", "plan", path, "--topology", topology, "--json"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    record = json.loads(done.stdout.splitlines()[-1])
    return {
        "needed": record["memory_bytes_needed"],
        "seconds": record["estimated_step_seconds"],
        "kernel_calls": sum(kernel["count"] for kernel in record["kernels"]),
    }


def main(command: str, asked: list[str]) -> None:
    """Writes, or prints, the figures of the programs that are asked for; those of others stay."""
    records = json.loads(PROGRAMS.read_text()) if PROGRAMS.exists() else {}
    for name in names():
        if asked and not any(part in name for part in asked):
            continue
        figures = cpu_figures(name) if name.startswith(CPU) else slice_figures(name)
        print(json.dumps({name: figures}), flush=True)
        records[name] = figures
        if command == "write":
            lines = [f"  {json.dumps(n)}: {json.dumps(f)}" for n, f in sorted(records.items())]
            PROGRAMS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
