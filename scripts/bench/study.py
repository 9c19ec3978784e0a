"""Which unsupervised objective? One budget of pretraining for each, then fine-tunings, 3 seeds.

    python scripts/bench/study.py --prose DIRECTORY --glue GLUE --output WORK [--jobs 2]

In the manner of tables 4 and 5 of Raffel et al. 2020: span corruption, i.i.d. replaced spans,
BERT-style, prefix LM, deshuffling, and no pretraining at all; equal steps of equal batches on the
files of DIRECTORY, with a vocabulary of 4,000 pieces of its own. Each is fine-tuned on SST-2
(8,000 examples), on MRPC, and on naming the novel that a passage of DIRECTORY comes from.

WORK holds the data, the vocabulary and a work directory for every arm, which is named by what it
is: an arm that is there is not repeated, one that was stopped goes on. At the end, and with
--report alone, the table: the mean of the last evaluations of the seeds and their standard
deviation, marked where it is within two of them of the best. Stops with the first arm that fails.
"""

import argparse
import csv
import json
import random
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arms import Arm, run_all, t5x_lite

OBJECTIVES = {
    "span corruption": ("span_corruption", 16),
    "i.i.d. replaced spans": ("iid_15_u_u", 32),
    "BERT-style": ("iid_15_r10s90_f", 64),
    "prefix LM": ("prefix_lm", 64),
    "deshuffling": ("all_permute", 64),
}
"""Name -> function of tasks/text.py and the tokens that its targets need."""

NO_PRETRAINING = "none"
VALIDATION = 1000
PASSAGE_WORDS = 80


@dataclass(frozen=True)
class Task:
    """A task to fine-tune on: its examples are text and label."""

    name: str
    labels: Sequence[str]
    splits: dict[str, list[tuple[str, str]]]
    inputs_length: int = 128


def read_tsv(path: Path) -> list[dict[str, str]]:
    """The rows of a GLUE file, where quotation marks are characters like others."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def sst2(glue: Path, examples: int) -> Task:
    """The first examples of SST-2's training file in a fixed random order."""

    def pairs(split: str) -> list[tuple[str, str]]:
        words = {"0": "negative", "1": "positive"}
        rows = read_tsv(glue / "SST-2" / f"{split}.tsv")
        return [(row["sentence"].strip(), words[row["label"]]) for row in rows]

    train = pairs("train")
    random.Random(0).shuffle(train)
    return Task(
        "sst2",
        ("negative", "positive"),
        {"train": train[:examples], "validation": pairs("dev")},
        inputs_length=64,
    )


def mrpc(glue: Path) -> Task:
    """MRPC whole."""

    def pairs(split: str) -> list[tuple[str, str]]:
        words = {"0": "different", "1": "equivalent"}
        return [
            (f"{row['#1 String']} second: {row['#2 String']}", words[row["Quality"]])
            for row in read_tsv(glue / "MRPC" / f"{split}.tsv")
        ]

    splits = {"train": pairs("train"), "validation": pairs("dev")}
    return Task("mrpc", ("different", "equivalent"), splits)


def novels(prose: Path, count: int, examples: int) -> Task:
    """Passages of `count` novels of a middle size, as many of each; the label is the author's name.

    It is that of the file's name, with a letter behind it where there are several of one author: a
    vocabulary of novels has no digits. Passages of training and of validation do not overlap.
    """
    files = sorted(prose.glob("*.txt"), key=lambda path: path.stat().st_size)
    start = (len(files) - count) // 2
    labels, train, validation = [], [], []
    chosen = sorted(files[start : start + count])
    authors = [path.stem.rpartition("_")[2] for path in chosen]
    for number, path in enumerate(chosen):
        words = path.read_text(encoding="utf-8").split()
        pieces = [words[at : at + PASSAGE_WORDS] for at in range(0, len(words), PASSAGE_WORDS)]
        label = authors[number]
        if authors.count(label) > 1:
            label += " " + "ABCDEFGHIJ"[authors[:number].count(label)]
        passages = [(" ".join(piece), label) for piece in pieces[:-1]]
        random.Random(0).shuffle(passages)
        held = VALIDATION // count
        labels.append(label)
        validation += passages[:held]
        train += passages[held : held + examples // count]
    return Task("novel", labels, {"train": train, "validation": validation})


def write_task(task: Task, directory: Path) -> None:
    """Writes train.jsonl and validation.jsonl; the last one says that all is there."""
    if (directory / "validation.jsonl").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    for split, pairs in task.splits.items():
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in pairs]
        part = directory / f"{split}.part"
        part.write_text("".join(lines), encoding="utf-8")
        part.rename(directory / f"{split}.jsonl")


class Study:
    """All arms and where they are."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.output = Path(options.output)
        self.vocabulary = self.output / "vocabulary"
        glue, prose = Path(options.glue), Path(options.prose)
        self.tasks = [
            sst2(glue, options.examples),
            novels(prose, options.novels, options.examples),
            mrpc(glue),
        ]

    def prepare(self) -> None:
        """Writes the vocabulary and the tasks' files."""
        for task in self.tasks:
            write_task(task, self.output / "data" / task.name)
        if not self.vocabulary.exists():
            files = sorted(map(str, Path(self.options.prose).glob("*.txt")))
            to = ("--output", str(self.vocabulary), "--size", "4000")
            subprocess.run(t5x_lite("vocab", "--input", *files, *to), check=True)

    def pretraining(self, objective: str) -> Arm:
        """The arm of an objective."""
        function, targets_length = OBJECTIVES[objective]
        return Arm(
            self.output / function,
            self.options.steps,
            (
                "configs/pretrain/study.py",
                *("--data.task", f"tasks.text:{function}"),
                *("--data.targets-length", str(targets_length)),
                *("--data.directory", self.options.prose),
                *("--data.vocabulary", str(self.vocabulary)),
                *("--optimizer.schedule.total-steps", str(self.options.steps)),
                *("--evaluation.period", str(self.options.steps)),
            ),
        )

    def finetuning(self, objective: str, task: Task, seed: int) -> Arm:
        """One fine-tuning of an objective's last weights."""
        init = "" if objective == NO_PRETRAINING else str(self.pretraining(objective).workdir)
        name = Path(init).name if init else NO_PRETRAINING
        return Arm(
            self.output / f"{name}-{task.name}-{seed}",
            self.options.finetuning_steps,
            (
                "configs/finetune/study.py",
                *("--data.directory", str(self.output / "data" / task.name)),
                *("--data.vocabulary", str(self.vocabulary)),
                *("--data.columns.labels", *task.labels),
                *("--data.inputs-length", str(task.inputs_length)),
                *("--evaluation.period", str(self.options.finetuning_steps)),
                *("--init", init, "--seed", str(seed)),
            ),
        )

    def run(self) -> None:
        """Runs what is not there yet: objective by objective, so that a part is a result."""
        run_all(
            [self.pretraining(objective) for objective in OBJECTIVES], at_once=self.options.jobs
        )
        run_all([arm for _, arms in self.results() for arm in arms], at_once=self.options.jobs)

    def results(self) -> Iterator[tuple[tuple[str, Task], list[Arm]]]:
        """(objective, task) and the arms of its seeds."""
        for objective in (*OBJECTIVES, NO_PRETRAINING):
            for task in self.tasks:
                seeds = range(self.options.seeds)
                yield (
                    (objective, task),
                    [self.finetuning(objective, task, seed) for seed in seeds],
                )

    def report(self) -> None:
        """Prints the table of what is there."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        for (objective, task), arms in self.results():
            found_here = [arm.last("validation/accuracy") for arm in arms]
            values = [100 * value for value in found_here if value is not None]
            if len(values) > 1:
                spread = statistics.stdev(values)
                found.setdefault(task.name, {})[objective] = (statistics.mean(values), spread)
        print("| objective | " + " | ".join(task.name for task in self.tasks) + " |")
        print("|---|" + "---|" * len(self.tasks))
        for objective in (*OBJECTIVES, NO_PRETRAINING):
            cells = []
            for task in self.tasks:
                rows = found.get(task.name, {})
                if objective not in rows:
                    cells.append("")
                    continue
                mean, spread = rows[objective]
                best, best_spread = max(rows.values())
                mark = "*" if mean >= best - 2 * best_spread else ""
                cells.append(f"{mean:.1f} ± {spread:.1f}{mark}")
            print(f"| {objective} | " + " | ".join(cells) + " |")
        for task in self.tasks:
            labels = [label for _, label in task.splits["validation"]]
            share = 100 * max(labels.count(label) for label in task.labels) / len(labels)
            print(f"{task.name}: the most frequent label is {share:.1f} of {len(labels)} examples")


def main() -> None:
    """Runs the study, and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prose", required=True, help="a directory of .txt files, one a novel")
    parser.add_argument("--glue", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=12000, help="of pretraining")
    parser.add_argument("--finetuning-steps", type=int, default=400)
    parser.add_argument("--examples", type=int, default=8000, help="of SST-2, and of passages")
    parser.add_argument("--novels", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="the table alone; run nothing")
    study = Study(parser.parse_args())
    if not study.options.report:
        study.prepare()
        study.run()
    study.report()


if __name__ == "__main__":
    main()
