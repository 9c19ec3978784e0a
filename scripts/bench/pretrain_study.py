"""Repeats, steps, sizes, schedules and ensembles of small encoders: held-out loss and few labels.

    python scripts/bench/pretrain_study.py --corpus CORPUS --vocabulary VOCABULARY --output WORK \
        [--steps 2000] [--arms one_pass repeat_16 ...] [--report] [--plot repeats.svg]

CORPUS is the output of corpus.py and VOCABULARY a vocab.txt with 2,000 pieces. Every arm pretrains
a DeBERTa of 2 x 128 by masked language modeling with other values (`ARMS`), on batches of 64 rows
of 32 tokens, and is fine-tuned on the sections of packages with 1,000 labels: `t5x-lite train`,
`finetune` and `predict`. The fine-tunings of all arms share rows, steps, batches and the rate,
which is the best of three for the arm `one_pass` by the accuracy on the validation rows.

A run that is there is not repeated, and one that was killed goes on. Two run at once, each on a
core. The last lines are one JSON line for each arm: the held-out loss, the accuracy on test rows,
and the difference from the arm --reference with a 95 % interval of a bootstrap over fine-tuning
seeds and test rows, paired. Then one line for each ensemble of three models that averages their
logits: three fine-tunings of one pretraining, and one of each of three pretrainings, less the mean
of their single models.
"""

import argparse
import dataclasses
import gzip
import json
import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from adapt_study import FineTuning, carry_out, lines_of, write_lines, write_rows
from arms import Arm, Made, run_all
from gpu_study import interval

TOKENS_PER_WORD = 2.0
ROWS, LENGTH = 64, 32
PEAK, TUNING_RATES = 3e-3, (3e-4, 1e-3, 3e-3)
LABELS = 1000


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """What is different in one pretraining.

    Attributes:
      width: times the width and the heads.
      steps: times the steps; 0 for a single step at a rate near 0, which leaves random weights.
      rate: times the learning rate.
      passes: number of passes over the text that a part of the corpus needs for the same tokens.
      source: the only source of the text, such as "prose"; "" takes all.
      schedule: learning rate after the warm-up: "linear" or "inverse_sqrt" decay.
      model: "deberta", "positions" for a DeBERTa whose input has position embeddings, too, as
        RetroMAE needs, or "bert" for a BERT with T5's relative positions, as Condenser needs.
      objective: "mlm", or replaced tokens with the embeddings shared by "gdes", "nes" or "es".
      seed: seed of parameters and batches.
      seeds: seeds of its fine-tunings; none if its loss alone counts.
    """

    width: float = 1
    steps: int = 1
    rate: float = 1
    passes: int = 1
    source: str = ""
    schedule: str = "linear"
    model: str = "deberta"
    objective: str = "mlm"
    seed: int = 0
    seeds: tuple[int, ...] = (0, 1, 2)


BASE = "one_pass"
ARMS = {
    BASE: Pretraining(seeds=(0, 1, 2)),
    "seed_1": Pretraining(seed=1, seeds=(0,)),
    "inverse_sqrt": Pretraining(schedule="inverse_sqrt"),
    "repeat_64": Pretraining(passes=64),
    "seed_2": Pretraining(seed=2, seeds=(0,)),
    "repeat_16": Pretraining(passes=16),
    "steps_2": Pretraining(steps=2),
    "width_1.5": Pretraining(width=1.5, rate=0.5),
    "width_1.5_rate_double": Pretraining(width=1.5, seeds=()),
    "rate_half": Pretraining(rate=0.5, seeds=()),
    "none": Pretraining(steps=0),
    "positions": Pretraining(model="positions", seeds=()),
    "bert": Pretraining(model="bert", steps=2, seeds=()),
    "gdes": Pretraining(objective="gdes"),
    "nes": Pretraining(objective="nes"),
    "es": Pretraining(objective="es"),
    "repeat_4": Pretraining(passes=4),
    "domain_4": Pretraining(passes=4, source="descriptions"),
    "prose_4": Pretraining(passes=4, source="prose"),
    "repeat_256": Pretraining(passes=256),
}
SEPARATE = (BASE, "seed_1", "seed_2")

CONFIG = """
import dataclasses

from configs.pretrain.bert_tiny import experiment as bert_tiny
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.published import deberta_v3_generator, deberta_v3_xsmall
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.optim.config import InverseSquareRoot, Linear, Warmup

model = {model}(
    vocab_size=2000,
    d_model={d_model},
    d_ff={d_ff},
    num_heads={num_heads},
    num_layers=2,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    {more}
)
schedule = {schedule}
optimizer = dataclasses.replace(bert_tiny.optimizer, schedule=schedule)
experiment = dataclasses.replace(
    bert_tiny,
    model=model,
    objective={objective},
    optimizer=optimizer,
    steps={steps},
)
"""
MODELS = {
    "deberta": ("deberta_v3_xsmall", ""),
    "positions": ("deberta_v3_xsmall", "position_biased_input=True,"),
    "bert": ("BertConfig", 'positions="relative_bias", initializer_stddev=0.05,'),
}
"""Name -> function and more arguments."""
MLM = "MaskedLM(mask_id=4)"
RTD = """Electra(
        generator=deberta_v3_generator(model),
        sharing="{sharing}",
        head="deberta",
        mask_id=4,
        mask_fraction=1.0,
    )"""
SCHEDULES = {
    "linear": "Linear(peak={peak}, total_steps={steps}, warmup_steps={warmup})",
    "inverse_sqrt": "Warmup(steps={warmup}, "
    "then=InverseSquareRoot(value={value}, warmup_steps={warmup}))",
}


class Study:
    """All runs and where they are."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.output, self.corpus = Path(options.output), Path(options.corpus)
        self.arms = {name: ARMS[name] for name in options.arms}

    def write_files(self) -> None:
        """Write configs, parts of the corpus and the rows of each seed; the test rows last."""
        for name in self.arms:
            write_lines(self.output / "configs" / f"{name}.py", [self.config(name)])
        parts = {self.part(arm): arm for arm in self.arms.values() if arm.passes > 1}
        missing = [path for path in parts if not (path / "validation").exists()]
        rows = self.documents() if missing else []
        for path in missing:
            source, needed = parts[path].source, self.options.steps * ROWS * LENGTH
            words, part = needed / TOKENS_PER_WORD / parts[path].passes, []
            for row in rows:
                read = json.loads(row)
                if words > 0 and source in ("", read["source"]):
                    part.append(row)
                    words -= len(read["text"].split())
            write_lines(path / "train/part.jsonl", part)
            shutil.copytree(self.corpus / "validation", path / "validation")
        if (self.output / "test.jsonl").exists():
            return
        seeds = sorted({seed for arm in ARMS.values() for seed in arm.seeds})
        write_rows(self.output, self.corpus / "sections", seeds, LABELS)

    def documents(self) -> list[str]:
        """The lines of the corpus in random order."""
        rows = []
        for file in sorted((self.corpus / "train").glob("*.jsonl.gz")):
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                rows += [line.rstrip("\n") for line in lines]
        random.Random(0).shuffle(rows)
        return rows

    def part(self, arm: Pretraining) -> Path:
        """Directory of an arm's text."""
        parts = self.output / "parts"
        return self.corpus if arm.passes == 1 else parts / f"{arm.passes}{arm.source}"

    def config(self, name: str) -> str:
        """The config file of an arm."""
        arm, warmup = ARMS[name], self.options.steps // 10
        steps = self.options.steps * max(1, arm.steps)
        peak = PEAK * arm.rate
        value = peak * math.sqrt(warmup)
        schedule = SCHEDULES[arm.schedule].format(
            peak=peak, steps=steps, warmup=warmup, value=value
        )
        objective = MLM if arm.objective == "mlm" else RTD.format(sharing=arm.objective)
        sizes = {"d_model": 128, "d_ff": 512, "num_heads": 2}
        wide = {key: round(value * arm.width) for key, value in sizes.items()}
        model, more = MODELS[arm.model]
        values = {"schedule": schedule, "steps": steps, "objective": objective, **wide}
        return CONFIG.format(model=model, more=more, **values).strip()

    def pretraining(self, name: str) -> Arm:
        arm, options = ARMS[name], self.options
        steps = max(1, options.steps * arm.steps)
        changes = {
            "data.directory": self.part(arm),
            "data.vocabulary": options.vocabulary,
            "data.batch-size": ROWS,
            "data.inputs-length": LENGTH,
            "seed": arm.seed,
            "evaluation.period": steps,
            "evaluation.max-batches": 100,
        }
        flags = [part for key, value in changes.items() for part in (f"--{key}", str(value))]
        config = str(self.output / "configs" / f"{name}.py")
        return Arm(self.output / name, steps, (config, *flags))

    def tuning(self, name: str, seed: int, rate: float) -> FineTuning:
        steps = self.options.tuning_steps
        return FineTuning(
            self.output / "tuned" / f"{name}_{seed}_{rate:.0e}",
            steps,
            (
                *("--init", str(self.pretraining(name).workdir)),
                *("--table", str(self.output / "rows" / str(seed))),
                *("--inputs", "{text}", "--targets", "{label}", "--task", "classify"),
                *("--data.inputs-length", str(LENGTH), "--seed", str(seed)),
                *("--optimizer.schedule.peak", str(rate), "--evaluation.period", str(steps)),
            ),
        )

    def best_rate(self) -> float:
        """The rate with which the first arm has the best accuracy on validation rows."""
        found = {
            rate: self.tuning(BASE, 0, rate).last("validation/accuracy") or 0.0
            for rate in TUNING_RATES
        }
        return max(found, key=lambda rate: found[rate])

    def tuned(self, name: str, seed: int) -> FineTuning:
        return self.tuning(name, seed, self.best_rate())

    def single(self, name: str, seed: int) -> Made:
        """Predictions of one model, with probabilities."""
        output = self.output / "predictions" / f"{name}_{seed}.jsonl"
        files = ("--input", str(self.output / "test.jsonl"), "--output", str(output))
        model = str(self.tuned(name, seed).workdir)
        return Made(output, ("predict", "--checkpoint", model, *files, "--probabilities"))

    def ensembles(self) -> dict[str, list[tuple[str, int]]]:
        """Name -> arms and fine-tuning seeds of its models."""
        found = {
            "three fine-tunings": [(BASE, seed) for seed in ARMS[BASE].seeds],
            "three pretrainings": [(name, 0) for name in SEPARATE],
        }
        return {
            name: models
            for name, models in found.items()
            if all(arm in self.arms for arm, _ in models)
        }

    def run_all(self) -> None:
        """Make everything that is not there yet, arm by arm."""
        run_all([self.pretraining(name) for name in self.arms], at_once=2)
        run_all([self.tuning(BASE, 0, rate) for rate in TUNING_RATES], at_once=2)
        several = [(name, seed) for name, arm in self.arms.items() for seed in arm.seeds]
        run_all([self.tuned(*each) for each in several], at_once=2)
        run_all([self.single(*each) for each in several], at_once=2)

    def right(self, made: Made) -> np.ndarray:
        """Whether each test row is right [rows]."""
        rows = lines_of(made.output)
        return np.array([row["prediction"] == row["label"] for row in rows], float)

    def right_together(self, made: Sequence[Made]) -> np.ndarray:
        """Whether each test row is right by the mean of the models' logits [rows]."""
        models = [lines_of(each.output) for each in made]
        found = []
        for rows in zip(*models, strict=True):
            logits = {
                label: sum(math.log(max(row["probabilities"][label], 1e-30)) for row in rows)
                for label in rows[0]["probabilities"]
            }
            found.append(max(logits, key=lambda x: logits[x]) == rows[0]["label"])
        return np.array(found, float)

    def report(self) -> list[dict[str, object]]:
        """One line for each arm that is complete, and for each ensemble."""
        of_seeds = {
            name: [self.single(name, seed) for seed in arm.seeds] for name, arm in self.arms.items()
        }
        complete = {n: made for n, made in of_seeds.items() if all(x.done() for x in made)}
        right = {n: np.array([self.right(x) for x in made]) for n, made in complete.items()}
        found: list[dict[str, object]] = []
        for name, each in right.items():
            run = self.pretraining(name)
            line: dict[str, object] = {
                "arm": name,
                "loss": run.last("validation/loss"),
                "training_loss": _mean_of_last(run.metric("loss")),
            }
            if each.size:
                line |= {"rate": self.best_rate(), "accuracy": _points(each.mean())}
            other = self.options.reference
            if each.size and name != other and other in right:
                less = each - right[other][: len(each)]
                line |= {"less_reference": _points(less.mean()), "interval": _interval(less)}
            found.append(line)
        for name, models in self.ensembles().items():
            if any(arm not in right for arm, _ in models):
                continue
            made = [self.single(*each) for each in models]
            singles = np.array([self.right(each) for each in made])
            together = self.right_together(made)
            less = (together - singles.mean(axis=0))[None]
            found.append(
                {
                    "ensemble": name,
                    "accuracy": _points(together.mean()),
                    "less_single": _points(less.mean()),
                    "interval": _interval(less),
                }
            )
        return found


def _mean_of_last(values: dict[int, float], number: int = 6) -> float:
    """Mean of the last logged values."""
    last = [values[step] for step in sorted(values)[-number:]]
    return float(np.mean(last))


def _points(share: float) -> float:
    return round(100 * float(share), 2)


def _interval(differences: np.ndarray) -> list[float]:
    return [_points(end) for end in interval(differences)]


def plot(lines: list[dict[str, object]], path: str) -> None:
    """Draw loss and accuracy of the repeats; the same lines make the same file."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "study", "svg.fonttype": "none", "font.size": 9})
    passes = {name: arm.passes for name, arm in ARMS.items() if "repeat" in name or name == BASE}
    rows = sorted((passes[str(x["arm"])], x) for x in lines if x.get("arm") in passes)
    figure, axes = plt.subplots(1, 2, figsize=(6.5, 3), layout="constrained")
    names = [number for number, _ in rows]
    for key, label in (("loss", "held-out"), ("training_loss", "training")):
        axes[0].plot(names, [float(str(x[key])) for _, x in rows], marker="o", label=label)
    axes[1].plot(names, [float(str(x["accuracy"])) for _, x in rows], marker="o", color="C2")
    axes[0].set(ylabel="MLM loss, nats")
    axes[0].legend()
    axes[1].set(ylabel="accuracy with 1,000 labels, %")
    for axis in axes:
        axis.set(xscale="log", xlabel="passes over a part of the text")
        axis.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Run what is not there yet, and print the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", required=True, help="output of corpus.py")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt with 2,000 pieces")
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=2000, help="of pretraining, of 2,048 tokens")
    parser.add_argument("--tuning-steps", type=int, default=400, help="of 32 rows")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--reference", default=BASE, choices=ARMS, help="of the differences")
    carry_out(Study, parser, plot)


if __name__ == "__main__":
    main()
