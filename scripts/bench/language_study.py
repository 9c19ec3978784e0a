"""E10: a pilot of transfer between two languages that share no letter, by the command line alone.

    python scripts/bench/language_study.py --prose NOVELS --glue GLUE --output WORK \
        [--steps 1500] [--tuning-steps 600] [--exponents 1 0.3] [--seed 0]

The second language is English in other letters, one for one ("fake English", arXiv:1912.07840): its
sentences mean the same, and no piece of it is one of English. English has ten times its text.

For each exponent a, a vocabulary and a small ELECTRA (gradient-disentangled sharing) see a language
of the share p as p^a. Then the encoder, and one of random weights beside it, learns SST-2 in one
language and is measured in both. What it is to show: across languages more than the majority's
share; and that a = 0.3 helps the small language. It is a test of the mechanism, and says nothing
of real languages.

WORK keeps what was made: it is not made again, and a killed command goes on. One JSON line of
each ELECTRA, with the held-out loss of each language, and of each arm, with its accuracies;
vocabulary_A.log says into how many pieces words are cut. A gap below the spread of seeds is none.
"""

import argparse
import csv
import json
import os
import re
import string
import time
from collections.abc import Sequence
from pathlib import Path

from arms import Arm, Made, run_all

os.environ.setdefault("JAX_PLATFORMS", "cpu")

ENGLISH, OTHER = "en", "xx"
LETTERS = str.maketrans(
    string.ascii_letters,
    "".join(map(chr, (*range(0x430, 0x44A), *range(0x410, 0x42A)))),
)
"""Each Latin letter's place in the Cyrillic alphabet, small and capital."""
SIZE = ("--model.num-layers", "2", "--model.d-model", "64", "--model.d-ff", "256")
MAJORITY = 0.509
"""Share of the more frequent label among SST-2's validation examples."""


def in_other(text: str) -> str:
    """A text in the second language."""
    return text.translate(LETTERS)


def documents(novels: Sequence[Path], share: int) -> list[str]:
    """Paragraphs of 20 words and more, one of so many."""
    texts = (novel.read_text(encoding="utf-8") for novel in novels)
    found = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return [each for each in found if each.count(" ") >= 20][::share]


class Study:
    """The places of everything."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.work = options, Path(options.output)

    def text(self, language: str) -> Path:
        """The directory of a language's text."""
        return self.work / "text" / language

    def write(self) -> None:
        """Writes the texts of both languages, and SST-2 in both."""
        novels = sorted(Path(self.options.prose).glob("*.txt"))
        for language, share in ((ENGLISH, 1), (OTHER, self.options.times)):
            file = self.text(language) / "text.txt"
            if file.exists():
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = "\n\n".join(documents(novels, share)) + "\n"
            part = file.with_suffix(".part")
            part.write_text(lines if language == ENGLISH else in_other(lines), encoding="utf-8")
            part.rename(file)
        for split in ("train", "dev"):
            for language in (ENGLISH, OTHER):
                file = self.work / "glue" / language / "SST-2" / f"{split}.tsv"
                if file.exists():
                    continue
                file.parent.mkdir(parents=True, exist_ok=True)
                source = Path(self.options.glue, "SST-2", f"{split}.tsv")
                with open(source, encoding="utf-8", newline="") as lines:
                    header, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
                if language == OTHER:
                    rows = [[in_other(sentence), label] for sentence, label in rows]
                part = file.with_suffix(".part")
                part.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)))
                part.rename(file)

    def vocabulary(self, exponent: float) -> Made:
        """The vocabulary of both languages."""
        folder = self.work / f"vocabulary_{exponent}"
        texts = (str(self.text(language) / "text.txt") for language in (ENGLISH, OTHER))
        return Made(
            folder,
            (
                *("vocab", "--input", *texts, "--alpha", str(exponent), "--encoder"),
                *("--size", str(self.options.pieces), "--output", str(folder)),
            ),
        )

    def model(self, exponent: float) -> tuple[str, ...]:
        """What a config needs for this vocabulary: [MASK] comes behind the last piece."""
        rows = str(self.options.pieces + 64)
        folder = str(self.vocabulary(exponent).output)
        return ("--data.vocabulary", folder, "--model.vocab-size", rows, *SIZE)

    def cache(self, exponent: float, language: str) -> Made:
        """The tokens of a language."""
        folder = self.work / f"cache_{exponent}" / language
        return Made(
            folder,
            (
                *("cache", "configs/pretrain/electra_tiny.py", "--output", str(folder)),
                *("--data.directory", str(self.text(language)), *self.pretraining(exponent)),
            ),
        )

    def pretraining(self, exponent: float) -> tuple[str, ...]:
        """The changes to ELECTRA's config."""
        generator = "--objective.generator."
        return (
            *self.model(exponent),
            *("--objective.mask-id", str(self.options.pieces), "--objective.sharing", "gdes"),
            *(f"{generator}vocab-size", str(self.options.pieces + 64)),
            *(f"{generator}embedding-size", "64", f"{generator}num-layers", "2"),
            *(f"{generator}d-model", "32", f"{generator}d-ff", "128"),
            *("--data.inputs-length", "64", "--data.batch-size", "64"),
        )

    def pretrained(self, exponent: float) -> Arm:
        """ELECTRA on both languages, mixed by the exponent."""
        steps, schedule = self.options.steps, "--optimizer.schedule."
        shares = {ENGLISH: round(self.options.times**exponent, 1), OTHER: 1.0}
        caches = (f"{self.cache(exponent, each).output}={rate}" for each, rate in shares.items())
        return Arm(
            self.work / f"electra_{exponent}",
            steps,
            (
                "configs/pretrain/electra_tiny.py",
                *self.pretraining(exponent),
                *("--data.cache", *caches),
                *("--seed", str(self.options.seed), f"{schedule}steps", str(steps // 10)),
                *(f"{schedule}then.total-steps", str(steps + 1)),
                *("--evaluation.period", str(steps), "--evaluation.loss-of-each-cache", "True"),
            ),
        )

    def tuned(self, exponent: float, language: str, *, random: bool) -> Arm:
        """SST-2 in one language, from the encoder or from random weights."""
        steps, schedule = self.options.tuning_steps, "--optimizer.schedule."
        start = () if random else ("--init", str(self.pretrained(exponent).workdir))
        return Arm(
            self.work / f"sst2_{exponent}_{language}{'_random' if random else ''}",
            steps,
            (
                *("configs/finetune/encoder_glue_tiny.py", *self.model(exponent), *start),
                *("--data.directory", str(self.work / "glue" / language)),
                *("--seed", str(self.options.seed), "--evaluation.period", str(steps)),
                *(f"{schedule}total-steps", str(steps), f"{schedule}warmup-steps"),
                str(steps // 10),
            ),
        )

    def measured(self, arm: Arm, language: str) -> Made:
        """A tuned encoder, measured in a language."""
        output = self.work / "measured" / f"{arm.workdir.name}_in_{language}"
        return Made(
            output / "metrics.json",
            (
                *("evaluate", str(arm.workdir / "config.json"), "--checkpoint", str(arm.workdir)),
                *("--data.directory", str(self.work / "glue" / language)),
                *("--evaluation.loss", "False", "--output", str(output)),
            ),
        )

    def arms(self, exponent: float) -> list[tuple[Arm, str]]:
        """All that learn the task, and the language they learn it in."""
        return [
            (self.tuned(exponent, language, random=random), language)
            for random in (False, True)
            for language in (ENGLISH, OTHER)
        ]

    def report(self) -> None:
        """Prints the lines of what is there."""
        for exponent in self.options.exponents:
            electra = self.pretrained(exponent)
            losses = {each: electra.last(f"validation/{each}/loss") for each in (ENGLISH, OTHER)}
            print(json.dumps({"exponent": exponent, "held_out_loss": losses}))
            for arm, language in self.arms(exponent):
                line = {"exponent": exponent, "arm": arm.workdir.name, "learned_in": language}
                for each in (ENGLISH, OTHER):
                    made = self.measured(arm, each)
                    if made.done():
                        metrics = json.loads(made.output.read_text(encoding="utf-8"))
                        line[f"accuracy_{each}"] = round(metrics["validation/accuracy"], 4)
                print(json.dumps({**line, "majority": MAJORITY}))


def main() -> None:
    """Runs what is not there yet, until the minutes are over, and prints the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prose", required=True, help="a directory of *.txt")
    parser.add_argument("--glue", required=True, help="of GLUE, which holds SST-2")
    parser.add_argument("--output", required=True)
    parser.add_argument("--exponents", nargs="+", type=float, default=[1.0, 0.3])
    parser.add_argument("--times", type=int, default=10, help="as much English as the other")
    parser.add_argument("--pieces", type=int, default=4000, help="of a vocabulary")
    parser.add_argument("--steps", type=int, default=1500, help="of pretraining")
    parser.add_argument("--tuning-steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="no stage begins after these")
    parser.add_argument("--report", action="store_true", help="the lines alone; run nothing")
    options = parser.parse_args()
    study, end = Study(options), time.monotonic() + 60 * options.minutes
    if not options.report:
        study.write()
        every = options.exponents
        stages = (
            [study.vocabulary(each) for each in every],
            [study.cache(each, language) for each in every for language in (ENGLISH, OTHER)],
            [study.pretrained(each) for each in every],
            [arm for each in every for arm, _ in study.arms(each)],
            [
                study.measured(arm, language)
                for each in every
                for arm, _ in study.arms(each)
                for language in (ENGLISH, OTHER)
            ],
        )
        for stage in stages:
            if time.monotonic() < end:
                run_all(stage, at_once=2)
    study.report()


if __name__ == "__main__":
    main()
