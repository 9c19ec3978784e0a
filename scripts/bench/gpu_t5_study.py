"""Compares objectives and architectures of T5 on one accelerator, from a bare checkout.

    python scripts/bench/gpu_t5_study.py tokens --corpus CORPUS --vocabulary VOCABULARY \
        --output FILE
    scripts/bench/gpu.sh t5_study run --tokens TOKENS --data FILE --output RESULTS --budget 200
    python scripts/bench/gpu_t5_study.py report --results RESULTS

TOKENS is what `gpu_pretrain.py tokens t5` wrote, CORPUS what corpus.py made. Raffel et al. 2020
(arXiv:1910.10683), tables 2 and 4 to 7, at a small scale: each arm is pretrained on the same rows
of 128 tokens, for the same number of steps, and fine-tuned to write the section of a package from
its description, given 1,000 labels. An answer is one token; the test takes the likeliest of the
answers. The rate of fine-tuning is chosen for each arm on the validation split, on the first seed;
the seeds are subsets of the labels, which all arms share.

A run writes a JSON line for each fine-tuning, and stops after --budget seconds with what it has.
`report` prints accuracies, the difference from the first arm with an interval of a bootstrap over
seeds and test examples (paired), the held-out loss of pretraining and what another row's inputs
add to it ("context", the gate: 1 nat), and the FLOPs of a row.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gpu
import gpu_pretrain
import gpu_study
import numpy as np

Objective = Literal["noise", "drop", "prefix", "bert", "mass", "shuffle"]
Architecture = Literal["encoder-decoder", "shared", "half", "lm", "prefix-lm"]

RAW, TEXT = 128, 64
"""Tokens of a row of pretraining, and of a description."""
STEPS, ROWS = 4000, 128
TUNING, TUNING_ROWS = 600, 32
PEAK = 1e-2
RATES = (3e-3, 1e-3)


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is pretrained.

    Attributes:
      objective: how a row becomes inputs and targets.
      rate: share of the tokens that are noise.
      span: mean length of a span of noise; None draws each token by itself.
      architecture: "half" has one layer in each stack, the language models have two in all.
      pretrained: False begins from random weights.
    """

    objective: Objective = "noise"
    rate: float = 0.15
    span: float | None = None
    architecture: Architecture = "encoder-decoder"
    pretrained: bool = True


ARMS = {
    "denoising, i.i.d. 15 %": Arm(),
    "no pretraining": Arm(pretrained=False),
    "prefix language modelling": Arm("prefix"),
    "deshuffling": Arm("shuffle"),
    "BERT-style": Arm("bert"),
    "spans of 3": Arm(span=3.0),
    "shared parameters": Arm(architecture="shared"),
    "half the layers": Arm(architecture="half"),
    "language model": Arm(architecture="lm"),
    "prefix language model": Arm(architecture="prefix-lm"),
    "MASS-style": Arm("mass"),
    "drop tokens": Arm("drop"),
    "spans of 10": Arm(span=10.0),
    "i.i.d. 50 %": Arm(rate=0.5),
    "i.i.d. 10 %": Arm(rate=0.1),
    "spans of 2": Arm(span=2.0),
    "spans of 5": Arm(span=5.0),
    "i.i.d. 25 %": Arm(rate=0.25),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    tokens = commands.add_parser("tokens", help="write the tokens of the sections")
    tokens.add_argument("--corpus", required=True, help="folder of corpus.py")
    tokens.add_argument("--vocabulary", required=True, help="folder of a vocabulary")
    tokens.add_argument("--output", required=True, help="FILE.npz")
    run = commands.add_parser("run", help="pretrain and fine-tune the arms")
    run.add_argument("--tokens", help="folder of the tokens")
    run.add_argument("--data", help="file of the sections")
    run.add_argument("--output", help="file of JSON lines, added to")
    run.add_argument("--budget", type=float, default=200.0, help="seconds")
    run.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    run.add_argument("--steps", type=int, default=STEPS, help="of pretraining")
    run.add_argument("--rows", type=int, default=ROWS, help="rows of a step of pretraining")
    run.add_argument("--labels", type=int, default=1000)
    run.add_argument("--seeds", type=int, default=5)
    run.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    run.add_argument("--compilers", type=int, default=6, help="arms that compile at once")
    run.add_argument("--dry-run", action="store_true", help="tiny, on CPU, random tokens")
    report = commands.add_parser("report", help="print the table")
    report.add_argument("--results", required=True, nargs="+", help="files of JSON lines")
    options = parser.parse_args(arguments)
    if "dry_run" in options and not (options.dry_run or (options.tokens and options.data)):
        parser.error("set --tokens and --data, or --dry-run")
    return options


# Where t5x_lite is installed: tokens.


def write_tokens(options: argparse.Namespace) -> None:
    """Write one .npz with the rows of the sections."""
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    vocabulary: Any = load_vocabulary(options.vocabulary)
    folder = Path(options.corpus) / "sections"
    splits = {split: gpu_study.lines_of(folder / f"{split}.jsonl") for split in gpu_study.SPLITS}
    names = sorted({line["label"] for line in splits["train"]})
    found: dict[str, np.ndarray] = {}
    for split, lines in splits.items():
        known = [line for line in lines if line["label"] in names]
        rows = np.zeros((len(known), TEXT), np.uint16)
        encoded = vocabulary.encode_batch([line["text"] for line in known])
        for row, ids in zip(rows, encoded, strict=True):
            inner = ids[: TEXT - 1]
            row[: len(inner) + 1] = [*inner, vocabulary.eos_id]
        found[f"sections/{split}"] = rows
        labels = [names.index(line["label"]) for line in known]
        found[f"labels/{split}"] = np.array(labels, np.uint8)
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.output, **found)
    print(json.dumps({"bytes": os.path.getsize(options.output), "sections": len(names)}))


def random_sections() -> dict[str, np.ndarray]:
    """Rows for a dry run, whose first token tells the section."""
    random, found = np.random.default_rng(0), {}
    for split, size in zip(gpu_study.SPLITS, (128, 32, 48), strict=True):
        rows = random.integers(8, 40, (size, 16)).astype(np.uint16)
        rows[:, 10], rows[:, 11:] = 1, 0
        found[f"sections/{split}"], found[f"labels/{split}"] = rows, (rows[:, 0] % 3).astype("u1")
    return found


# Inputs and targets.


def filled(tokens: Any, taken: Any, *, size: int, eos: int) -> Any:
    """The tokens that are taken, then EOS, then 0; [rows, size + 1]."""
    import jax.numpy as jnp

    order = jnp.argsort(~taken, axis=1, stable=True)[:, :size]
    number = jnp.sum(taken, axis=1, keepdims=True)
    found = jnp.take_along_axis(tokens, order, axis=1)
    places = jnp.arange(size + 1)
    found = jnp.pad(jnp.where(places[:-1] < number, found, 0), ((0, 0), (0, 1)))
    return jnp.where(places == number, eos, found)


def noise_of(arm: Arm, shape: tuple[int, int], key: Any) -> tuple[Any, int, int]:
    """The mask of the noise, its number of tokens and spans at most; a row begins without."""
    import jax
    import jax.numpy as jnp

    raw = shape[1]
    noise = max(1, round(raw * arm.rate))
    if arm.span is None:
        drawn = jax.random.uniform(key, shape).at[:, 0].set(2.0)
        return drawn <= jnp.sort(drawn, axis=1)[:, noise - 1, None], noise, min(noise, raw - noise)
    spans = max(1, round(noise / arm.span))

    label = gpu_pretrain.span_labels(shape, noise=noise, spans=spans, key=key)
    return label % 2 == 1, noise, spans


def pair_of(arm: Arm, tokens: Any, *, info: dict[str, Any], key: Any) -> tuple[Any, Any]:
    """Inputs and targets of rows of text, each with EOS and padded with 0."""
    import jax
    import jax.numpy as jnp

    tokens = tokens.astype(jnp.int32)
    rows, raw = tokens.shape
    first_key, second_key = jax.random.split(key)
    sentinel, place = info["sentinel_start"], jnp.arange(raw)
    fill = functools.partial(filled, eos=info["eos"])
    everything = jnp.ones(tokens.shape, bool)
    whole = fill(tokens, everything, size=raw)
    if arm.objective == "prefix":
        split = jax.random.randint(key, (rows, 1), 1, raw)
        return fill(tokens, place < split, size=raw), fill(tokens, place >= split, size=raw)
    if arm.objective == "shuffle":
        order = jnp.argsort(jax.random.uniform(key, tokens.shape), axis=1)
        return fill(jnp.take_along_axis(tokens, order, axis=1), everything, size=raw), whole
    noise, count, spans = noise_of(arm, (rows, raw), first_key)
    if arm.objective in ("bert", "mass"):
        kinds_key, others_key = jax.random.split(second_key)
        kinds = jax.random.uniform(kinds_key, tokens.shape)
        others = jax.random.randint(others_key, tokens.shape, 3, sentinel - 100)
        wrong = jnp.where((kinds < 0.1) & (arm.objective == "bert"), others, sentinel)
        return fill(jnp.where(noise, wrong, tokens), everything, size=raw), whole
    if arm.objective == "drop":
        return fill(tokens, ~noise, size=raw - count), fill(tokens, noise, size=count)
    begins = jnp.pad(noise[:, 1:] != noise[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    marked = jnp.where(begins, sentinel - (jnp.cumsum(begins, axis=1) - 1) // 2, tokens)
    inputs = fill(
        jnp.where(noise, marked, tokens), ~noise | begins, size=min(raw, raw - count + spans)
    )
    targets = fill(
        jnp.where(noise, tokens, marked), noise | begins, size=min(raw, count + spans + 1)
    )
    return inputs, targets


def features_of(arm: Arm, inputs: Any, targets: Any, *, answers: bool) -> dict[str, Any]:
    """What the model is given; a language model has both behind each other.

    The loss of the causal one is that of the whole text, but of answers alone.
    """
    import jax.numpy as jnp

    if arm.architecture not in ("lm", "prefix-lm"):
        return {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": jnp.pad(targets[:, :-1], ((0, 0), (1, 0))),
            "decoder_target_tokens": targets,
            "decoder_loss_weights": (targets > 0).astype(jnp.float32),
        }
    joined = jnp.concatenate([inputs, targets], axis=1)
    order = jnp.argsort(joined == 0, axis=1, stable=True)
    joined = jnp.take_along_axis(joined, order, axis=1)
    there, of_inputs = joined > 0, jnp.sum(inputs > 0, axis=1, keepdims=True)
    places = jnp.arange(joined.shape[1])
    learned = there & ((places >= of_inputs) | (arm.architecture == "lm" and not answers))
    found = {
        "decoder_input_tokens": jnp.pad(joined[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": joined,
        "decoder_loss_weights": learned.astype(jnp.float32),
    }
    if arm.architecture == "prefix-lm":
        found["decoder_causal_attention"] = (places < of_inputs + 1).astype(jnp.int32)
    return found


# Runs.


def model_of(arm: Arm, *, tiny: bool, vocab_size: int) -> Any:
    """The config of an arm's model."""
    from t5x_lite.models.lm import LMConfig

    size = "tiny" if tiny else "2x256"
    found = gpu_pretrain.model_of("t5", size, vocab_size, dropout_rate=0.0, attention="plain")
    if arm.architecture == "half":
        return found.replace(num_encoder_layers=1, num_decoder_layers=1)
    if arm.architecture == "shared":
        return found.replace(share_layers=True)
    if arm.architecture == "encoder-decoder":
        return found
    fields = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "dropout_rate", "attention")
    given = {name: getattr(found, name) for name in (*fields, "unroll", "tie_embeddings")}
    prefix = arm.architecture == "prefix-lm"
    return LMConfig(num_layers=found.num_encoder_layers, prefix=prefix, **given)


class TextRunner(gpu_study.Runner):
    """A runner whose optimizer is Adafactor."""

    def _optimizer(self, peak: Any, total: Any) -> Any:
        from t5x_lite.optim.config import Adafactor

        schedule = gpu_pretrain.budgeted(peak, 0.1 * total, total)
        return Adafactor(schedule=schedule, momentum=0.9, clip_norm=1.0)


class Text(gpu_study.Record):
    """Data, arms and results."""

    def __init__(self, options: argparse.Namespace):
        import jax

        from t5x_lite.core.sharding import MeshConfig, make_mesh

        super().__init__(options)
        if options.dry_run:
            self.info, flat, held = gpu_pretrain.random_tokens("t5")
            self.sections, raw = random_sections(), 16
        else:
            self.info = json.loads((Path(options.tokens) / "tokens.json").read_text())
            flat, raw = gpu_pretrain.read_chunks(options.tokens, "train"), RAW
            held = gpu_pretrain.read_chunks(options.tokens, "validation")
            with np.load(options.data) as file:
                self.sections = {name: file[name] for name in file.files}
        self.mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
        self.rows = flat[: len(flat) // raw * raw].reshape(-1, raw)
        self.held_out = held[: len(held) // raw * raw].reshape(-1, raw)[:512]
        self.classes = int(self.sections["labels/train"].max()) + 1
        self.first_answer = 40 if options.dry_run else 1000

    def answers(self, labels: Any) -> Any:
        """Targets: the token of a label, and EOS."""
        import jax.numpy as jnp

        tokens = labels.astype(jnp.int32) + self.first_answer
        return jnp.stack([tokens, jnp.full_like(tokens, self.info["eos"])], axis=1)


@dataclasses.dataclass
class Setting:
    """What a runner reads of a study."""

    model: Any
    options: argparse.Namespace
    mesh: Any
    steps_per_call: int


class Trial:
    """The programs of an arm."""

    def __init__(self, text: Text, name: str):
        from t5x_lite.objectives.likelihood import LanguageModel, Seq2Seq

        self.text, self.name, self.arm = text, name, ARMS[name]
        dry, options = text.options.dry_run, text.options
        self.model = model_of(self.arm, tiny=dry, vocab_size=text.info["vocab_size"])
        objective = Seq2Seq() if self.arm.architecture not in ("lm", "prefix-lm") else None
        objective = objective or LanguageModel()

        def pretraining(arrays: Any, rows: Any, key: Any) -> Any:
            pair = pair_of(self.arm, arrays[rows], info=text.info, key=key)
            return features_of(self.arm, *pair, answers=False)

        def tuning(arrays: Any, rows: Any, key: Any) -> Any:
            import jax.numpy as jnp

            del key
            inputs = arrays[0][rows].astype(jnp.int32)
            return features_of(self.arm, inputs, text.answers(arrays[1][rows]), answers=True)

        each = 4 if dry else 100
        setting = Setting(self.model, options, text.mesh, each)
        self.pretraining = TextRunner(
            setting, objective, pretraining, rows=8 if dry else options.rows
        )
        tuned = Setting(self.model.replace(dropout_rate=0.1), options, text.mesh, each)
        self.tuning = TextRunner(tuned, objective, tuning, rows=8 if dry else TUNING_ROWS)

    def compile(self, rows: Any, sections: Any) -> None:
        import jax

        if self.arm.pretrained:
            self.pretraining.compile(rows)
        self.tuning.compile(sections)
        params = jax.eval_shape(self.pretraining.learner.init, jax.random.key(0))
        self.held_out = jax.jit(self._held_out).lower(params, self.text.held_out).compile()

    def _held_out(self, params: Any, rows: Any) -> tuple[Any, Any]:
        """The loss of held-out rows with their own inputs, and with another row's."""
        import jax
        import jax.numpy as jnp

        pair = pair_of(self.arm, rows, info=self.text.info, key=jax.random.key(7))
        loss = self.pretraining.learner.whole_loss
        found = []
        for inputs in (pair[0], jnp.roll(pair[0], 1, axis=0)):
            batch = features_of(self.arm, inputs, pair[1], answers=True)
            found.append(loss(params, batch).value())
        return found[0], found[1]

    @functools.cached_property
    def row_flops(self) -> int | None:
        """FLOPs of a row's forward pass, in pretraining."""
        import jax

        shapes = jax.eval_shape(
            lambda rows: features_of(
                self.arm,
                *pair_of(self.arm, rows, info=self.text.info, key=jax.random.key(0)),
                answers=False,
            ),
            self.text.rows[:2],
        )
        lengths = {n: x.shape[1:] for n, x in shapes.items() if n.endswith("tokens")}
        return self.pretraining.learner.objective.forward_flops(self.model, lengths)

    @functools.cached_property
    def answer(self) -> Callable[[Any, Any], Any]:
        """The class of each row of inputs."""
        import jax
        import jax.numpy as jnp

        text = self.text

        @jax.jit
        def run(params: Any, inputs: Any) -> Any:
            bound = self.tuning.learner.bind(params)
            inputs = inputs.astype(jnp.int32)
            nothing = jnp.zeros(len(inputs), jnp.int32)
            batch = features_of(self.arm, inputs, text.answers(nothing), answers=True)
            names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_causal_attention")
            given = {name: batch[name] for name in names if name in batch}
            logits = bound.model(**given, key=None)
            place = jnp.argmax(batch["decoder_loss_weights"] > 0, axis=1)[:, None, None]
            found = jnp.take_along_axis(logits, place, axis=1)[:, 0]
            first = text.first_answer
            return jnp.argmax(found[:, first : first + text.classes], axis=-1)

        return run

    def right(self, params: Any, split: str) -> np.ndarray:
        """Which texts of a split get their label."""
        size, rows = 256, self.text.sections[f"sections/{split}"]
        whole = np.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=1)
        found = [self.answer(params, whole[i : i + size]) for i in range(0, len(whole), size)]
        return np.concatenate(found)[: len(rows)] == self.text.sections[f"labels/{split}"]


def run(options: argparse.Namespace) -> None:
    import jax

    from t5x_lite.core import trees

    text = Text(options)
    with jax.set_mesh(text.mesh):
        rows = jax.device_put(text.rows)
        sections = tuple(
            jax.device_put(text.sections[f"{x}/train"]) for x in ("sections", "labels")
        )
        trials = [Trial(text, name) for name in options.arms]

        def compiled(trial: Trial) -> Trial:
            with jax.set_mesh(text.mesh):
                trial.compile(rows, sections)
            return trial

        total = len(text.sections["sections/train"])
        steps, tuning = (8, 8) if options.dry_run else (options.steps, TUNING)
        with concurrent.futures.ThreadPoolExecutor(options.compilers) as pool:
            for trial in pool.map(compiled, trials):
                if text.left <= 0:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
                everything = np.arange(len(text.rows))
                given: dict[str, Any] = {"steps": steps, "peak": PEAK, "seed": 0}
                if not trial.arm.pretrained:
                    given["steps"] = 0
                params, _ = trial.pretraining.train({}, everything, rows, **given)
                start = trees.flatten(params)
                own, other = map(float, trial.held_out(params, text.held_out))
                about = {"steps": given["steps"], "held_out": own, "context": other - own}
                about = {name: round(value, 4) for name, value in about.items()}
                tried: dict[float, float] = {}

                def tune(
                    trial: Trial, start: Any, about: dict[str, Any], rate: float, seed: int
                ) -> dict[str, Any]:
                    chosen = np.random.default_rng(seed).permutation(total)[: options.labels]
                    given: dict[str, Any] = {"steps": tuning, "peak": rate, "seed": seed}
                    params, tuned = trial.tuning.train(start, chosen, sections, **given)
                    hits = {split: trial.right(params, split) for split in ("validation", "test")}
                    return {
                        "arm": trial.name, "rate": rate, "seed": seed, "labels": options.labels,
                        **about, "loss": round(tuned, 4), "row_flops": trial.row_flops,
                        "parameters": sum(math.prod(x.shape) for x in start.values()),
                        **{split: round(float(found.mean()), 4) for split, found in hits.items()},
                        "right": gpu_study.packed_bits(hits["test"]),
                    }  # fmt: skip

                for rate in RATES:
                    name = f"{trial.name} {rate} 0"
                    line = text.record(name, functools.partial(tune, trial, start, about, rate, 0))
                    if line is not None:
                        tried[rate] = line["validation"]
                for seed in range(1, options.seeds) if tried else ():
                    rate = max(tried, key=lambda rate: tried[rate])
                    name = f"{trial.name} {rate} {seed}"
                    text.record(name, functools.partial(tune, trial, start, about, rate, seed))


def report(options: argparse.Namespace) -> None:
    lines = [line for path in options.results for line in gpu_study.lines_of(Path(path))]
    hits: dict[str, dict[int, np.ndarray]] = {}
    about: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(line["arm"] for line in lines):
        those = [line for line in lines if line["arm"] == name]
        best = max((x for x in those if x["seed"] == 0), key=lambda line: line["validation"])
        rate = best["rate"]
        hits[name] = {x["seed"]: gpu_study.unpacked(x["right"]) for x in those if x["rate"] == rate}
        about[name] = best
    base = next(iter(ARMS))
    print(
        "| arm | accuracy | difference, points | seeds | held-out loss | context "
        "| MFLOPs a row | parameters |\n|---|---|---|---|---|---|---|---|"
    )
    for name, of_arm in hits.items():
        mean = np.mean([value.mean() for value in of_arm.values()])
        shared, cell = sorted(set(of_arm) & set(hits.get(base, ()))), ""
        if name != base and shared:
            apart = np.stack([of_arm[seed] - hits[base][seed] for seed in shared])
            low, high = gpu_study.interval(apart)
            cell = f"{100 * apart.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        line = about[name]
        print(
            f"| {name} | {100 * mean:.1f} | {cell} | {len(of_arm)} | {line['held_out']} "
            f"| {line['context']:.2f} | {(line['row_flops'] or 0) / 1e6:.0f} "
            f"| {line['parameters'] / 1e6:.1f} M |"
        )


def main() -> None:
    options = parse()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command == "tokens":
        return write_tokens(options)
    if options.command == "report":
        return report(options)
    if options.dry_run:
        gpu.quick_cpu()
        options.dtype = "float32"
    return run(options)


if __name__ == "__main__":
    main()
