"""Texts to vectors: `t5x-lite embed` beside sentence-transformers, and its memory.

    python scripts/bench/embed.py speed --prose DIRECTORY --vocabulary vocab.txt --output WORK
    python scripts/bench/embed.py batch --vocabulary vocab.txt --output WORK [--profile]
    python scripts/bench/embed.py memory --prose DIRECTORY --vocabulary vocab.txt --output WORK

speed: a BERT of 6 layers, d 384, random weights in a directory of transformers, imported by
`import hf`; texts of novels whose lengths are mixed, from a sentence to pages that are cut at 256
tokens; batches of 32, the mean of the states, length 1, all cores. Four sides, each a process of
its own in each round, one after the other: ours in float32 and bfloat16 (activations; sums are
float32), sentence-transformers in float32 and bfloat16. A side runs on a few texts and on all of
them, and the difference of the times counts: loading and compiling are not in it. Medians of the
rounds, and the smallest cosine of a text's vector to ours in float32.

batch: one batch of 32 rows of 256 tokens without the tokenizer, the sides in one process, one after
the other in each round; medians of the seconds and of the processor's seconds. With --profile, one
more batch of each of our sides by JAX's profiler: seconds of each kind of operation of XLA, those
below 1 % as "other"; operations that run at the same time both count.

memory: the peak resident memory of `t5x-lite embed` on 50,000 and on 200,000 short texts, and their
ratio.

Each prints JSON lines.
"""

import argparse
import collections
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

SIDES = ("ours float32", "ours bfloat16", "theirs float32", "theirs bfloat16")
LENGTH = 256
_WORDS = (8, 12, 20, 30, 45, 60, 90, 130, 200, 400)
"""Lengths of the texts, each as often as the others."""


def checkpoint(work: Path, vocabulary: str, *, width: int, layers: int) -> tuple[Path, Path]:
    """A directory of transformers, and the same weights as ours."""
    theirs, ours = work / "theirs", work / "ours"
    if not ours.exists():
        import torch
        import transformers

        torch.manual_seed(0)
        words = len(Path(vocabulary).read_text(encoding="utf-8").splitlines())
        config = transformers.BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            intermediate_size=4 * width,
        )
        transformers.BertModel(config).save_pretrained(theirs)
        (theirs / "vocab.txt").write_bytes(Path(vocabulary).read_bytes())
        transformers.BertTokenizer.from_pretrained(str(theirs)).save_pretrained(theirs)
        subprocess.run(t5x_lite("import", "hf", str(theirs), str(ours)), check=True)
    return theirs, ours


def t5x_lite(*arguments: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "t5x_lite", *arguments]


def texts(prose: str, count: int, sizes: tuple[int, ...]) -> list[str]:
    """Runs of words of novels in a mixed order; they begin anew when all are read."""
    words = [
        word
        for path in sorted(Path(prose).glob("*.txt"))[:20]
        for word in re.findall(r"\S+", path.read_text(encoding="utf-8"))
    ]
    rng, place, found = random.Random(0), 0, []
    for size in itertools.islice(itertools.cycle(sizes), count):
        found.append(" ".join(words[place : place + size]))
        place = (place + size) % (len(words) - max(sizes))
    rng.shuffle(found)
    return found


def write(path: Path, lines: list[str]) -> str:
    """A file of texts."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def side(options: argparse.Namespace) -> None:
    """One side in this process: prints the seconds of the few and of all texts."""
    who, dtype = options.side.split()
    few, many = (
        Path(options.output, f"{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("few", "many")
    )
    theirs, ours = Path(options.output, "theirs"), Path(options.output, "ours")
    seconds, vectors = [], np.zeros(0)
    if who == "theirs":
        import sentence_transformers
        import torch
        from sentence_transformers import models  # pyright: ignore[reportAttributeAccessIssue]

        torch.set_num_threads(options.threads)
        word = models.Transformer(str(theirs), max_seq_length=LENGTH)
        pool = models.Pooling(word.get_word_embedding_dimension(), pooling_mode="mean")
        model = sentence_transformers.SentenceTransformer(
            modules=[word, pool, models.Normalize()], device="cpu"
        )
        if dtype == "bfloat16":
            model = model.bfloat16()
        for lines in (few, few, many):
            begin = time.perf_counter()
            given = model.encode(
                lines,
                batch_size=32,
                convert_to_tensor=True,
                show_progress_bar=False,
            )
            vectors = given.float().numpy()
            seconds.append(time.perf_counter() - begin)
    else:
        from t5x_lite.core.accelerators import keep_freed_memory

        keep_freed_memory()  # as the command does
        import jax

        from t5x_lite.commands.answers import embed

        # A call compiles what the one before it had compiled: it finds that here.
        jax.config.update("jax_compilation_cache_dir", str(Path(options.output, "compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        for name in ("few", "few", "many"):
            output = str(Path(options.output, f"{who}-{dtype}.npy"))
            begin = time.perf_counter()
            embed(
                str(ours),
                input=str(Path(options.output, f"{name}.txt")),
                output=output,
                pooling="mean",
                normalize=True,
                inputs_length=LENGTH,
                compute_dtype=dtype,  # pyright: ignore[reportArgumentType]
            )
            seconds.append(time.perf_counter() - begin)
            vectors = np.load(output)
    np.save(Path(options.output, f"vectors-{who}-{dtype}.npy"), vectors)
    print(json.dumps({"few": seconds[1], "many": seconds[2]}))


def run_side(name: str, options: argparse.Namespace) -> dict[str, float]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "side", "--side", name, "--output", options.output]
    command += ["--threads", str(options.threads)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(made.stdout.splitlines()[-1])


def speed(options: argparse.Namespace) -> None:
    """All sides in rounds."""
    from t5x_lite.inference.checkpoint import Checkpoint

    work = Path(options.output)
    work.mkdir(parents=True, exist_ok=True)
    _, ours = checkpoint(work, options.vocabulary, width=options.width, layers=options.layers)
    lines = texts(options.prose, options.texts, _WORDS)
    write(work / "many.txt", lines)
    # The command reads chunks of 1,024 texts: the few are one, with all lengths.
    write(work / "few.txt", lines[:1024])
    rows = (
        Checkpoint.load([str(ours)], inputs_length=LENGTH)
        .encoder(pooling="mean")
        .rows(lines[1024:])
        .rows
    )
    tokens = sum(map(len, rows))
    rates: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name in options.sides:
            took = run_side(name, options)
            rates.setdefault(name, []).append(tokens / (took["many"] - took["few"]))
    for name, found in rates.items():
        line: dict[str, object] = {
            "side": name,
            "tokens_per_second": round(statistics.median(found)),
            "rounds": [round(rate) for rate in found],
        }
        if "ours float32" in rates:
            exact = np.load(work / "vectors-ours-float32.npy")
            vectors = np.load(work / f"vectors-{name.replace(' ', '-')}.npy").astype(np.float64)
            cosine = np.sum(vectors * exact, axis=1) / np.linalg.norm(vectors, axis=1)
            line["smallest_cosine"] = float(cosine.min())
        print(json.dumps(line))
    pairs = [("ours float32", "theirs float32"), ("ours bfloat16", "theirs float32")]
    pairs.append(("ours bfloat16", "theirs bfloat16"))
    for one, other in pairs:
        if one in rates and other in rates:
            ratios = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
            print(json.dumps({"ratio": f"{one} / {other}", "median": statistics.median(ratios)}))


def batch(options: argparse.Namespace) -> None:
    """The sides on one batch, in this process."""
    from t5x_lite.core.accelerators import keep_freed_memory

    keep_freed_memory()
    work = Path(options.output)
    work.mkdir(parents=True, exist_ok=True)
    theirs, ours = checkpoint(work, options.vocabulary, width=options.width, layers=options.layers)
    rows = np.random.default_rng(0).integers(1000, 30_000, (32, LENGTH)).astype(np.int32)
    sides = {name: model_side(name, theirs, ours, rows, options.threads) for name in options.sides}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.rounds + 1):
        for name, run in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            took[name].append((time.perf_counter() - wall, time.process_time() - processor))
    for name, found in took.items():
        wall, processor = (statistics.median(each) for each in zip(*found[1:], strict=True))
        line = {"side": name, "seconds": round(wall, 2), "processor_seconds": round(processor, 2)}
        print(json.dumps(line))
    if options.profile:
        for name in (name for name in sides if name.startswith("ours")):
            print(json.dumps({"side": name, "profile": profile_of(sides[name])}))


def profile_of(run: Callable[[], Any]) -> dict[str, float]:
    """Seconds of each kind of operation of XLA; one on several cores counts once."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(trace)).planes)
    seconds: dict[str, float] = collections.defaultdict(float)
    for event in (event for plane in planes for line in plane.lines for event in line.events):
        if any(name == "hlo_op" for name, _ in event.stats):
            seconds[re.sub(r"[.\d]+$", "", event.name)] += event.duration_ns / 1e9
    total, found = sum(seconds.values()), collections.Counter[str]()
    for kind, value in seconds.items():
        found[kind if value >= 0.01 * total else "other"] += value
    return {kind: round(value, 3) for kind, value in found.most_common()}


def model_side(
    name: str, theirs: Path, ours: Path, rows: np.ndarray, threads: int
) -> Callable[[], Any]:
    """A function that computes the vectors of one batch of tokens."""
    who, dtype = name.split()
    if who == "ours":
        from t5x_lite.inference.checkpoint import Checkpoint

        loaded = Checkpoint.load([str(ours)], inputs_length=LENGTH, compute_dtype=dtype)  # pyright: ignore[reportArgumentType]
        encoder = loaded.encoder(pooling="mean", normalize=True)
        embedder = encoder.embedder(batch_size=len(rows))
        return lambda: embedder.run(encoder.params, list(rows))
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.BertModel.from_pretrained(theirs, add_pooling_layer=False).eval()
    model = model.bfloat16() if dtype == "bfloat16" else model
    tokens = torch.tensor(rows.astype(np.int64))

    def run() -> Any:
        with torch.inference_mode():
            states = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
            mean = states.last_hidden_state.float().mean(1)
            return torch.nn.functional.normalize(mean).numpy()

    return run


_WATCHED = """
import json, resource, sys
from t5x_lite.commands.answers import embed
embed(sys.argv[1], input=sys.argv[2], output=sys.argv[3], pooling="mean", normalize=True)
print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def memory(options: argparse.Namespace) -> None:
    """The command on few and on many texts."""
    work = Path(options.output)
    work.mkdir(parents=True, exist_ok=True)
    _, ours = checkpoint(work, options.vocabulary, width=64, layers=1)
    peaks: dict[int, Any] = {}
    for count in options.counts:
        file = write(work / f"{count}.txt", texts(options.prose, count, (4, 6, 8, 10)))
        arguments = [sys.executable, "-c", _WATCHED, str(ours), file, str(work / f"{count}.npy")]
        made = subprocess.run(arguments, check=True, capture_output=True, text=True)
        peaks[count] = json.loads(made.stdout.splitlines()[-1])["peak"]
        print(json.dumps({"texts": count, "peak_bytes": peaks[count]}), flush=True)
    few, many = min(peaks), max(peaks)
    print(json.dumps({"ratio": peaks[many] / peaks[few]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("speed", "batch", "memory", "side"))
    parser.add_argument("--prose", help="a directory of novels, *.txt")
    parser.add_argument("--vocabulary", help="vocab.txt of the uncased BERT")
    parser.add_argument("--output", required=True)
    parser.add_argument("--texts", type=int, default=5120, help="some times 1,024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--sides", nargs="*", default=SIDES)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--profile", action="store_true", help="where the time of batch goes")
    parser.add_argument("--counts", type=int, nargs=2, default=[50_000, 200_000])
    options = parser.parse_args()
    needs = {"speed": ("prose", "vocabulary"), "batch": ("vocabulary",), "side": ("side",)}
    needs["memory"] = needs["speed"]
    if missing := [f"--{name}" for name in needs[options.what] if not getattr(options, name)]:
        parser.error(f"{options.what} needs {' and '.join(missing)}")
    if options.what == "speed" and options.texts <= 1024:
        parser.error("--texts must be above 1,024: the first 1,024 are the few texts")
    {"speed": speed, "batch": batch, "memory": memory, "side": side}[options.what](options)


if __name__ == "__main__":
    main()
