"""Which objective makes the better encoder? RetroMAE for retrieval, ELECTRA's shared tables.

    python scripts/bench/encoders.py --prose DIRECTORY --beir BEIR --glue GLUE \
        --vocabulary vocab.txt --output WORK [--jobs 2]

A BERT of 4 layers and width 128 (configs/pretrain/bert_tiny.py), on passages of the novels of
DIRECTORY and of Python's documentation, with those pieces of vocab.txt that are frequent there.
Rows have 32 tokens, but for the second half of the shared masked language model (128, as documents
have): so small a model learns to look at neighbours only if there are few, and is still at the
frequencies of words after 1,500 batches of 32 rows of 128.

Retrieval: from the weights of one masked language model, equal steps of MLM, SimCSE, RetroMAE with
basic and with enhanced decoding; then the documents of BEIR are searched by the vectors, cosine of
the [CLS] states and of the means: as they are (zero-shot), and after contrastive steps on pairs of
a document's title and its text. Beside them the MLM itself and random weights. In the paper
(Xiao et al. 2022, arXiv:2205.12035) RetroMAE is ahead of MLM and SimCSE in both.

ELECTRA: embeddings shared (ES), not shared (NES) and shared without the discriminator's gradient
(GDES). How low and how fast the generator's loss falls, the mean cosine of two words of E_G and of
E_D, whether the discriminator tells replaced tokens (AUC), and the accuracy on SST-2 after a
fine-tuning. In the paper (He et al. 2021, arXiv:2111.09543) GDES >= ES > NES, the cosines of E_G
are above those of E_D, and the generator of GDES learns as fast as that of NES.

Seeds are paired: seed i of every objective has the same batches. WORK holds the data and a work
directory for every run, which is named by objective and seed: what is there is not repeated, and
what was stopped goes on (so other sizes or steps need another WORK). At the end, and with --report
alone, the tables: mean and standard deviation.
"""

import argparse
import dataclasses
import json
import random
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from arms import Arm, merged, run_all, t5x_lite

PASSAGE_WORDS = 80
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RANDOM, WARM = "random weights", "the shared MLM"
CONTINUED = {
    "MLM": ("configs/pretrain/bert_tiny.py",),
    "SimCSE": ("configs/finetune/contrastive_tiny.py", "--data.task", "tasks.pairs:same_text"),
    "RetroMAE, basic": (*("configs/pretrain/retromae_tiny.py", "--objective.decoder", "basic"),),
    "RetroMAE, enhanced": (
        *("configs/pretrain/retromae_tiny.py", "--objective.decoder", "enhanced"),
        *("--objective.query", "normalised"),
    ),
}
"""What goes on from the shared MLM: a name and the arguments of its training."""
MASKED = (
    *("--model.initializer-stddev", "0.06", "--objective.whole-word", "False"),
    *("--model.dropout-rate", "0.0", "--model.attention-dropout-rate", "0.0"),
)
"""What masks tokens: kernels of about 1 / sqrt(width) at first, single tokens, no dropout."""
DETECTION = (
    *("--objective.generator.initializer-stddev", "0.06"),
    *("--objective.generator.dropout-rate", "0.0"),
    *("--objective.generator.attention-dropout-rate", "0.0"),
    *("--objective.generator.d-model", "128", "--objective.generator.d-ff", "512"),
    *("--objective.generator.num-heads", "2", "--objective.generator.num-layers", "2"),
    *("--optimizer.schedule.then.peak", "1e-3", "--optimizer.bias-correction", "True"),
    *("--objective.decoupled", "False", "--objective.share-embedding-norm", "False"),
)
"""ELECTRA as in DeBERTaV3, but in one update: a generator of the model's width and half its layers.
At a peak of 2e-3, without bias correction, the discriminator gives one answer to everything after
100 steps."""
PAIRS = ("SimCSE",)
"""Those whose objective is contrastive, at its own lower rate."""
SHARING = ("es", "nes", "gdes")
PARTS = ("retrieval", "electra")
METRICS = {"mrr_at_10": "MRR@10", "ndcg_at_10": "nDCG@10"}


def sentences(text: str) -> list[str]:
    """Cut behind full stops; good enough to group words."""
    return [part for part in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if part]


def passages(text: str) -> Iterator[list[str]]:
    """Neighbouring sentences of `PASSAGE_WORDS` words at most, or a sentence that is longer."""
    group, size = [], 0
    for sentence in sentences(text):
        words = len(sentence.split())
        if group and size + words > PASSAGE_WORDS:
            yield group
            group, size = [], 0
        group.append(sentence)
        size += words
    if group:
        yield group


def title_pairs(beir: Path) -> Iterator[dict[str, object]]:
    """The titles of BEIR's documents, and what else they say; no query and no judgement."""
    for line in (beir / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        title = document["title"].strip()
        text = document["text"].strip().removeprefix(title).strip()
        if title and text:
            yield {"query": title, "pos": [text]}


def write_lines(path: Path, objects: Iterable[Mapping[str, object]]) -> None:
    """Writes JSON lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(item) + "\n" for item in objects), encoding="utf-8")
    part.rename(path)


def write_vocabulary(path: Path, source: Path, texts: Sequence[str], size: int) -> None:
    """The pieces of `source` that are most frequent in the texts, and all characters in them."""
    from tokenizers import BertWordPieceTokenizer

    pieces = source.read_text(encoding="utf-8").split("\n")
    tokenizer = BertWordPieceTokenizer(str(source), lowercase=True)
    counts: Counter[str] = Counter()
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        counts.update(encoding.tokens)
    characters = [p for p in pieces if len(p.removeprefix("##")) == 1 and counts[p]]
    frequent = [piece for piece, _ in counts.most_common()]
    kept = list(dict.fromkeys((*SPECIAL, *characters, *frequent)))[:size]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("\n".join(kept) + "\n", encoding="utf-8")
    part.rename(path)


@dataclasses.dataclass(frozen=True)
class Search:
    """A measurement of a checkpoint's vectors."""

    checkpoint: Path
    output: Path
    beir: str
    pooling: str

    @property
    def log(self) -> Path:
        """The file beside its output."""
        return self.output.with_name(self.output.name + ".log")

    def done(self) -> bool:
        """Whether the metrics are there."""
        return (self.output / "metrics.json").exists()

    def command(self) -> list[str]:
        """Searches."""
        return t5x_lite(
            *("evaluate", "configs/retrieve/beir.py", "--checkpoint", str(self.checkpoint)),
            *("--output", str(self.output)),
            *("--evaluation.retrieval.directory", self.beir),
            *("--evaluation.retrieval.pooling", self.pooling),
            *("--evaluation.retrieval.normalize", "True"),
            *("--evaluation.retrieval.document-length", "128"),
        )

    def metric(self, name: str) -> float | None:
        """One of its metrics."""
        if not self.done():
            return None
        found = json.loads((self.output / "metrics.json").read_text(encoding="utf-8"))
        return next(value for key, value in found.items() if key.endswith(name))


class Study:
    """All runs and where they are."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.output = Path(options.output)
        self.vocabulary = self.output / "vocabulary" / "vocab.txt"
        self.texts = self.output / "data" / "texts"
        self.pairs = self.output / "data" / "pairs"
        self.seeds = range(options.seeds)

    def prepare(self) -> None:
        """Writes passages, pairs and the vocabulary."""
        if self.vocabulary.exists():
            return
        documents = self.output / "data" / "python"
        command = (sys.executable, "-m", "t5x_lite.data.tasks.python_docs", str(documents))
        subprocess.run(command, check=True)
        lines = (documents / "documents.jsonl").read_text(encoding="utf-8").splitlines()
        groups = [group for line in lines for group in passages(json.loads(line)["text"])]
        for path in sorted(Path(self.options.prose).glob("*.txt")):
            groups += passages(path.read_text(encoding="utf-8"))
        groups = [group for group in groups if len(" ".join(group).split()) > PASSAGE_WORDS // 4]
        generator = random.Random(0)
        generator.shuffle(groups)
        texts = [" ".join(group) for group in groups[: self.options.passages]]
        write_lines(self.texts / "texts.jsonl", ({"text": text} for text in texts))

        write_lines(self.pairs / "pairs.jsonl", title_pairs(Path(self.options.beir)))
        source = Path(self.options.vocabulary)
        write_vocabulary(self.vocabulary, source, texts, self.options.vocabulary_size)

    def arm(
        self, name: str, config: str, *arguments: str, steps: int, peak: float | None, seed: int
    ) -> Arm:
        """A run; arguments that come later win."""
        common = (
            *("--data.vocabulary", str(self.vocabulary)),
            *("--model.vocab-size", str(self.options.vocabulary_size)),
            *("--data.batch-size", str(self.options.batch_size)),
            *("--data.inputs-length", "128"),
            *("--seed", str(seed)),
            *("--log-period", "20", "--evaluation.period", str(steps)),
        )
        changes = merged((*common, *rate(peak, steps), *arguments))
        return Arm(self.output / name, steps, (config, *changes))

    def masked(
        self, name: str, config: str, *arguments: str, steps: int, peak: float | None, seed: int
    ) -> Arm:
        """A run of an objective that masks tokens, a passage a row."""
        return self.arm(
            *(name, config, "--objective.mask-id", str(SPECIAL.index("[MASK]")), *MASKED),
            *("--data.directory", str(self.texts), "--data.pack", "False"),
            *("--data.shuffle-buffer", "4096"),
            *arguments,
            steps=steps,
            peak=peak,
            seed=seed,
        )

    def rows(self, times: int) -> tuple[str, ...]:
        """Rows of 32 tokens, and so many times as many of them."""
        size = str(times * self.options.batch_size)
        return ("--data.inputs-length", "32", "--data.batch-size", size)

    def short(self) -> Arm:
        """The first half of the shared MLM."""
        return self.masked(
            *("short", "configs/pretrain/bert_tiny.py", *self.rows(4)),
            steps=self.options.short_steps,
            peak=2e-3,
            seed=0,
        )

    def warm(self) -> Arm:
        """The shared MLM."""
        return self.masked(
            *("warm", "configs/pretrain/bert_tiny.py"),
            *("--init", str(self.short().workdir)),
            steps=self.options.warm_steps,
            peak=1e-3,
            seed=0,
        )

    def untrained(self, seed: int) -> Arm:
        """Random weights: one step at rate 0."""
        return self.masked(
            *(f"random-{seed}", "configs/pretrain/bert_tiny.py"),
            *("--evaluation.loss", "False"),
            steps=1,
            peak=0.0,
            seed=seed,
        )

    def continued(self, objective: str, seed: int) -> Arm:
        """More steps, of one of the objectives, from the shared MLM."""
        config, *arguments = CONTINUED[objective]
        name, steps = f"{slug(objective)}-{seed}", self.options.steps
        init = ("--init", str(self.warm().workdir), *self.rows(2))
        if objective not in PAIRS:
            return self.masked(name, config, *arguments, *init, steps=steps, peak=2e-3, seed=seed)
        return self.arm(
            *(name, config, *arguments, *init, "--data.directory", str(self.texts)),
            *("--data.targets-length", "32", "--objective.pooling", "cls"),
            *("--data.shuffle-buffer", "4096"),
            steps=steps,
            peak=1e-4,
            seed=seed,
        )

    def source(self, objective: str, seed: int) -> Arm:
        """The run that made an encoder."""
        if objective == WARM:
            return self.warm()
        return self.untrained(seed) if objective == RANDOM else self.continued(objective, seed)

    def contrastive(self, objective: str, seed: int) -> Arm:
        """Contrastive steps from one of the encoders."""
        return self.arm(
            f"pairs-{slug(objective)}-{seed}",
            *("configs/finetune/contrastive_tiny.py", "--data.directory", str(self.pairs)),
            *("--init", str(self.source(objective, seed).workdir)),
            *("--data.inputs-length", "32", "--data.targets-length", "64"),
            *("--data.shuffle-buffer", "4096", "--objective.pooling", "cls"),
            steps=self.options.contrastive_steps,
            peak=1e-4,
            seed=seed,
        )

    def search(self, arm: Arm, pooling: str) -> Search:
        """A measurement of a run's last weights."""
        output = self.output / f"{arm.workdir.name}-{pooling}"
        return Search(arm.workdir, output, self.options.beir, pooling)

    def detection(self, sharing: str, seed: int) -> Arm:
        """A run of ELECTRA."""
        steps = self.options.detection_steps
        return self.masked(
            *(f"{sharing}-{seed}", "configs/pretrain/electra_tiny.py"),
            *("--objective.sharing", sharing, *DETECTION, *self.rows(4)),
            *("--objective.generator.vocab-size", str(self.options.vocabulary_size)),
            *("--optimizer.schedule.steps", str(max(1, steps // 6))),
            *("--optimizer.schedule.then.total-steps", str(steps)),
            *("--evaluation.period", str(max(1, steps // 20))),
            *("--evaluation.max-batches", "8"),
            steps=steps,
            peak=None,
            seed=seed,
        )

    def finetuning(self, sharing: str, seed: int) -> Arm:
        """SST-2 from a run of ELECTRA, or from random weights."""
        arm = self.untrained(seed) if sharing == RANDOM else self.detection(sharing, seed)
        return self.arm(
            *(f"sst2-{slug(sharing)}-{seed}", "configs/finetune/encoder_glue_tiny.py"),
            *("--init", str(arm.workdir), "--data.directory", self.options.glue),
            *("--data.inputs-length", "64", "--data.batch-size", "32"),
            steps=self.options.glue_steps,
            peak=3e-4,
            seed=seed,
        )

    def run(self) -> None:
        """Runs what is not there yet, seed by seed, so that a part is a result."""
        jobs, parts = self.options.jobs, self.options.parts
        untrained = [self.untrained(seed) for seed in self.seeds]
        run_all(untrained, at_once=jobs)
        for arm in (self.short(), self.warm()) if "retrieval" in parts else ():
            run_all([arm], at_once=1)
        encoders = (RANDOM, WARM, *CONTINUED)
        for seed in self.seeds if "retrieval" in parts else ():
            run_all([self.continued(name, seed) for name in CONTINUED], at_once=jobs)
            run_all([self.contrastive(name, seed) for name in encoders], at_once=jobs)
            found = [self.source(name, seed) for name in encoders]
            searches = [self.search(arm, kind) for arm in found for kind in ("cls", "mean")]
            searches += [self.search(self.contrastive(name, seed), "cls") for name in encoders]
            run_all(searches, at_once=jobs)
        for seed in self.seeds if "electra" in parts else ():
            run_all([self.detection(name, seed) for name in SHARING], at_once=jobs)
            run_all([self.finetuning(name, seed) for name in (RANDOM, *SHARING)], at_once=jobs)

    def report(self) -> None:
        """Prints the tables of what is there."""
        columns = [f"{label}, {kind}" for kind in ("[CLS]", "mean") for label in METRICS.values()]
        columns += [f"{label}, after contrastive steps" for label in METRICS.values()]
        print("| encoder | " + " | ".join(columns) + " |")
        print("|---|" + "---|" * len(columns))
        for name in (RANDOM, WARM, *CONTINUED):
            searches = [
                [self.search(self.source(name, seed), kind) for seed in self.seeds]
                for kind in ("cls", "mean")
            ]
            searches.append(
                [self.search(self.contrastive(name, seed), "cls") for seed in self.seeds]
            )
            values = [[s.metric(metric) for s in of] for of in searches for metric in METRICS]
            print(f"| {name} | " + " | ".join(map(spread, values)) + " |")
        self.report_detection()

    def report_detection(self) -> None:
        """Prints the table of ELECTRA."""
        curves = {
            (name, seed): self.detection(name, seed).metric("validation/cross_entropy")
            for name in SHARING
            for seed in self.seeds
        }
        goal = max((min(curve.values()) for curve in curves.values() if curve), default=0.0)
        print(
            f"\n| sharing | generator's loss | steps to {goal:.3f} | cosine in E_G | in E_D | AUC "
            "| SST-2 |\n|---|---|---|---|---|---|---|"
        )
        for name in SHARING:
            arms = [self.detection(name, seed) for seed in self.seeds]
            cosines = [cosines_of(arm.workdir) if arm.done() else (None, None) for arm in arms]
            columns = (
                [arm.last("validation/cross_entropy") for arm in arms],
                [steps_to(curves[name, seed], goal) for seed in self.seeds],
                [generator for generator, _ in cosines],
                [discriminator for _, discriminator in cosines],
                [arm.last("validation/detection_auc") for arm in arms],
                [self.finetuning(name, seed).last("validation/accuracy") for seed in self.seeds],
            )
            print(f"| {name.upper()} | " + " | ".join(map(spread, columns)) + " |")
        control = [self.finetuning(RANDOM, s).last("validation/accuracy") for s in self.seeds]
        print(f"| {RANDOM} | | | | | | {spread(control)} |")


def rate(peak: float | None, steps: int) -> tuple[str, ...]:
    """A linear schedule with a tenth of it for the warm-up; None leaves the config's own."""
    if peak is None:
        return ()
    return (
        *("--optimizer.schedule.peak", str(peak)),
        *("--optimizer.schedule.total-steps", str(steps)),
        *("--optimizer.schedule.warmup-steps", str(steps // 10)),
    )


def slug(name: str) -> str:
    """A name as a part of a path."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation of what is there."""
    there = [value for value in values if value is not None]
    if not there:
        return ""
    deviation = f" ± {statistics.stdev(there):.3f}" if len(there) > 1 else ""
    return f"{statistics.mean(there):.3f}{deviation}"


def steps_to(curve: Mapping[int, float], goal: float) -> float | None:
    """The step at which a falling curve is at `goal`, between two measurements by a line."""
    before: tuple[int, float] | None = None
    for step, value in sorted(curve.items()):
        if value <= goal:
            if before is None:
                return float(step)
            part = (before[1] - goal) / (before[1] - value)
            return before[0] + part * (step - before[0])
        before = step, value
    return None


def cosines_of(workdir: Path) -> tuple[float, float]:
    """Mean cosine of two different pieces, of the generator's table and the discriminator's."""
    import numpy as np

    from t5x_lite.inference.loading import Loaded

    loaded = Loaded.from_checkpoint(str(workdir), step=None)
    seen = loaded.learner.read(loaded.params)
    modules = (seen["objective"]["generator"], seen["model"])
    tables = [np.asarray(module["embedding"]["token"]) for module in modules]

    def mean(table: np.ndarray) -> float:
        vectors = table[len(SPECIAL) :]
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        count = len(vectors)
        return float((np.sum(np.sum(vectors, axis=0) ** 2) - count) / (count * (count - 1)))

    return mean(tables[0]), mean(tables[1])


def main() -> None:
    """Runs the study, and prints its tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prose", required=True, help="a directory of .txt files, one a novel")
    parser.add_argument("--beir", required=True, help="a directory in BEIR's format")
    parser.add_argument("--glue", required=True)
    parser.add_argument("--vocabulary", required=True, help="the vocab.txt of uncased BERT")
    parser.add_argument("--output", required=True)
    parser.add_argument("--vocabulary-size", type=int, default=2048)
    parser.add_argument("--passages", type=int, default=60_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--short-steps", type=int, default=3000)
    parser.add_argument("--warm-steps", type=int, default=1200)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--contrastive-steps", type=int, default=200)
    parser.add_argument("--detection-steps", type=int, default=1000)
    parser.add_argument("--glue-steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="the tables alone; run nothing")
    study = Study(parser.parse_args())
    if not study.options.report:
        study.prepare()
        study.run()
    study.report()


if __name__ == "__main__":
    main()
