"""Peak memory of `t5x-lite import hf` of a large checkpoint.

    python scripts/bench/import_memory.py DIRECTORY [--scale 1.0] [--keep]

Writes a random bfloat16 checkpoint of T5 1.1 XL's shape (3B parameters, 5.7 GB, in shards) below
DIRECTORY, shard by shard, imports it in a process of its own, and samples that process's anonymous
memory (RssAnon of /proc/PID/status: memory maps of files are not in it). --scale multiplies d_model
and d_ff. One JSON line: bytes of the model, peak anonymous bytes of the import and of a process
that only imported the modules, seconds.
"""

import argparse
import dataclasses
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np

BOUND = 3 * 10**9
"""What the peak may be above the model's size."""
_SAMPLE_SECONDS = 0.02
_BLOCK = 1 << 20


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of d_model and d_ff")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--shard-gigabytes", type=float, default=2.0)
    parser.add_argument("--dtype", default="keep", choices=("keep", "float32", "bfloat16"))
    parser.add_argument("--keep", action="store_true", help="leave the files there")
    return parser.parse_args()


def write_source(directory: pathlib.Path, arguments: argparse.Namespace) -> int:
    """Writes the checkpoint to import; returns its bytes."""
    from t5x_lite.data.vocabularies.loading import train_sentencepiece
    from t5x_lite.interop.hf import from_model, model_pieces
    from t5x_lite.interop.rules import LazyArray
    from t5x_lite.interop.tensor_files import write_tensors
    from t5x_lite.models.published import t5_1_1_xl

    preset = t5_1_1_xl()
    model = dataclasses.replace(
        preset,
        d_model=round(preset.d_model * arguments.scale),
        d_ff=round(preset.d_ff * arguments.scale),
        num_encoder_layers=arguments.layers,
        num_decoder_layers=arguments.layers,
    )
    directory.mkdir(parents=True)
    config = from_model(model, model_type="t5", dtype="bfloat16")
    (directory / "config.json").write_text(json.dumps(config))
    lines = [" ".join(chr(97 + (i * 7 + j) % 26) for j in range(20)) for i in range(50)]
    train_sentencepiece(lines, size=31, output_dir=directory / "vocabulary")
    (directory / "vocabulary" / "sentencepiece.model").rename(directory / "spiece.model")
    # Random bits with a bounded exponent: no NaN, and nothing that zstd could make smaller.
    block = np.random.default_rng(0).integers(0, 1 << 16, size=_BLOCK, dtype=np.uint16) & 0xBFFF

    def tensor(shape: tuple[int, ...]) -> np.ndarray:
        return np.resize(block, shape).view(ml_dtypes.bfloat16)

    dtype = np.dtype(ml_dtypes.bfloat16)
    arrays = {
        piece.name: LazyArray(piece.shape, dtype, lambda shape=piece.shape: tensor(shape))
        for piece in model_pieces(model)[1]
    }
    write_tensors(directory, arrays, shard_bytes=int(arguments.shard_gigabytes * 10**9))
    return sum(array.nbytes for array in arrays.values())


def peak_of(code: str, *code_arguments: str) -> tuple[int, float]:
    """Runs Python code in a process: its peak RssAnon in bytes, and its seconds."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *code_arguments])
    status = pathlib.Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        try:
            lines = status.read_text().splitlines()
        except OSError:
            break
        sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
        peak = max(peak, int(sizes[0]) * 1024 if sizes else 0)
        time.sleep(_SAMPLE_SECONDS)
    if process.wait():
        raise SystemExit(f"the import failed with exit code {process.returncode}")
    return peak, time.perf_counter() - start


IMPORT = (
    "import sys\n"
    "from t5x_lite.commands.weights import import_hf\n"
    "import_hf(sys.argv[1], sys.argv[2], dtype=sys.argv[3])\n"
)


def main() -> None:
    arguments = parse()
    source, destination = arguments.directory / "source", arguments.directory / "imported"
    try:
        size = write_source(source, arguments)
        empty, _ = peak_of("import t5x_lite.interop.hf_import\n")
        peak, seconds = peak_of(IMPORT, str(source), str(destination), arguments.dtype)
        result: dict[str, Any] = {
            "benchmark": "import_memory",
            "machine": platform.processor() or platform.machine(),
            "model_bytes": size,
            "dtype": arguments.dtype,
            "peak_anonymous_bytes": peak,
            "modules_alone_bytes": empty,
            "within_bound": peak <= size + BOUND,
            "seconds": round(seconds, 1),
        }
        print(json.dumps(result))
    finally:
        if not arguments.keep:
            shutil.rmtree(source, ignore_errors=True)
            shutil.rmtree(destination, ignore_errors=True)


if __name__ == "__main__":
    main()
