"""Pilots of modules that are trained apart, on a small T5 and GLUE, by the command line.

    python scripts/bench/modules_study.py STUDY --glue GLUE --prose NOVELS --output WORK \
        [--base-steps 1000] [--steps 400] [--seed 0]

| study | arms |
|---|---|
| `rows` | all weights, LoRA, (IA)^3, a bottleneck and a prompt on 100, 1,000 and all rows of SST-2; and with labels that are shuffled |
| `arithmetic` | the differences of SST-2 and MRPC added; each taken from a model that learned both |
| `language` | novels and SST-2 in words that are exchanged: a language's module under a task's (bottlenecks and sparse ones), and the task's alone |
| `widths` | T5's adapter layers of d 32, 128 and 512, gradual unfreezing, and all weights |
| `fusion` | on RTE: a fusion of the modules of SST-2 and MRPC, of these and RTE's own, and RTE's alone |
| `routing` | SST-2, MRPC and RTE in one run: one LoRA, and three with a soft and a hard choice by token: scores and steps a second |
| `few_shot` | four examples before a question, in four orders of three draws each |
| `masks` | which places two tasks choose by size, by change and by movement: the share in common, beside that of chance |

sparse_study.py and intrinsic_study.py have those of sparse modules and of dimensions,
adapt_study.py all methods on a BERT. WORK keeps what was made: it is not made again, and a killed
command goes on. One JSON line an arm. One seed is a pilot: a gap below the spread of seeds is none.
"""  # noqa: E501

import argparse
import csv
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arms import Arm, Made, run_all

os.environ.setdefault("JAX_PLATFORMS", "cpu")

SIZE = (
    *("--model.vocab-size", "8192", "--model.d-model", "128", "--model.d-kv", "32"),
    *("--model.d-ff", "256", "--model.num-encoder-layers", "2", "--model.num-decoder-layers", "2"),
)
IN_LAYERS = "sites=('.*attention/.*', 'mlp/.*')"
SITES = "sites=('.*attention/.*', 'mlp/.*', 'embedding')"
"""LoRA's: a base of few steps has an output table that must move (docs/benchmarks.md)."""
TABLE = "table = lora(r=8, sites='embedding')"
"""What moves it where the other modules stand in blocks, which cannot choose it."""
RATE, OF_MODULES = 1e-2, 3e-3
"""Rates of all weights, times their scale, and of modules, which have none."""
FOLDERS = {"sst2": "SST-2", "mrpc": "MRPC", "rte": "RTE"}
OTHER_TASKS = ("glue_cola", "glue_qqp", "glue_stsb", "glue_mnli", "glue_qnli")
METHODS: dict[str, tuple[str, float]] = {
    "full": ("", RATE),
    "lora": (f"x = lora(r=8, {SITES})", OF_MODULES),
    "ia3": ("x = ia3()", RATE),
    "seq_bn": ("x = seq_bn(reduction=4)", OF_MODULES),
    "prompt": ("x = prompt(length=10)", 0.3),
}
"""Name -> the line of --adapters.add, and the learning rate."""


class Study:
    """The places of everything, and the jobs that the studies share."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.work = options, Path(options.output)
        folder = self.work / "vocabulary"
        self.vocabulary = Made(
            folder,
            (
                *("vocab", "--input", str(self.work / "text" / "novels.txt")),
                *(str(self.work / "text" / "sst2.txt"), "--size", "8000"),
                *("--output", str(folder)),
            ),
        )
        self.base = self.pretrained("base", "text", options.base_steps)

    def write(self) -> None:
        """Writes the text that the base learns."""
        for name, lines in {
            "novels": lambda: novels(Path(self.options.prose)),
            "sst2": lambda: [row[0] for row in self.table("sst2", "train")],
        }.items():
            written(self.work / "text" / f"{name}.txt", lambda lines=lines: "\n".join(lines()))
        run_all([self.vocabulary], at_once=1)

    def table(self, task: str, split: str) -> list[list[str]]:
        """The rows of a split of GLUE's, without its header."""
        path = Path(self.options.glue, FOLDERS[task], f"{split}.tsv")
        with open(path, encoding="utf-8", newline="") as lines:
            return list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]

    def sst2(self, name: str, change: Callable[[list[list[str]]], list[list[str]]]) -> str:
        """A directory of GLUE whose training rows of SST-2 are changed, and nothing else."""
        folder = self.work / "glue" / name
        rows = change(self.table("sst2", "train"))
        text = "".join("\t".join(row) + "\n" for row in (["sentence", "label"], *rows))
        written(folder / "SST-2" / "train.tsv", lambda: text)
        if not (folder / "SST-2" / "dev.tsv").exists():
            shutil.copy(Path(self.options.glue, "SST-2", "dev.tsv"), folder / "SST-2" / "dev.tsv")
        return str(folder)

    def pretrained(self, name: str, text: str, steps: int, *more: str) -> Arm:
        """Span corruption on a directory of text."""
        schedule = "--optimizer.schedule."
        return Arm(
            self.work / name,
            steps,
            (
                *("configs/pretrain/prose.py", *SIZE, *self._common()),
                *("--data.directory", str(self.work / text)),
                *("--data.inputs-length", "64", "--data.targets-length", "14"),
                *("--data.batch-size", "16", f"{schedule}total-steps", str(steps + 1)),
                *(f"{schedule}warmup-steps", str(max(1, steps // 10))),
                *("--evaluation.loss", "False", *more),
            ),
        )

    def _common(self) -> tuple[str, ...]:
        seed = ("--seed", str(self.options.seed), "--compute-dtype", "float32")
        return ("--data.vocabulary", str(self.vocabulary.output), *seed)

    def tuned(
        self,
        name: str,
        task: str,
        line: str = "",
        *more: str,
        rate: float | None = None,
        config: str = "finetune/sst2",
        start: Arm | None = None,
    ) -> Arm:
        """A run on a task, from the base or another run; a line is that of a module."""
        steps = self.options.steps
        rate = rate or (OF_MODULES if line or "--adapters.load" in more else RATE)
        return Arm(
            self.work / f"{name}_{self.options.seed}",
            steps,
            (
                *(f"configs/{config}.py", *SIZE, *self._common()),
                *("--init", str((start or self.base).workdir)),
                *("--data.task", f"tasks.glue:{task}", "--data.directory", self.options.glue),
                *("--data.inputs-length", "128", "--data.targets-length", "16"),
                *("--data.batch-size", "16", "--optimizer.schedule.value", str(rate)),
                *("--evaluation.loss", "False", "--evaluation.period", str(steps)),
                *(("--adapters.add", line) if line else ()),
                *more,
            ),
        )

    def mixed(self, name: str, tasks: tuple[str, ...], line: str, *more: str) -> Arm:
        """A run on several tasks."""
        left_out = (*OTHER_TASKS, *(f"glue_{each}" for each in FOLDERS if each not in tasks))
        mixture = ("--data.mixing.leave-out", *left_out)
        config = "finetune/glue_tiny"
        rate = OF_MODULES if line or "--adapters.add" in more else RATE
        arm = self.tuned(name, "sst2", line, *mixture, *more, config=config, rate=rate)
        arguments = list(arm.arguments)
        arguments[arguments.index("--data.task") + 1] = "tasks.mixtures:glue"
        return Arm(arm.workdir, arm.steps, tuple(arguments))

    def evaluated(self, checkpoint: Path, config: Arm, *more: str) -> Made:
        """The metrics of a checkpoint on a run's tasks."""
        output = self.work / "measured" / checkpoint.name
        return Made(
            output / "metrics.json",
            (
                *("evaluate", str(config.workdir / "config.json")),
                *("--checkpoint", str(checkpoint), "--evaluation.loss", "False"),
                *("--evaluation.max-examples", "None", *more, "--output", str(output)),
            ),
        )

    def composed(self, name: str, expression: str, base: Arm, **of: Arm) -> list[Made]:
        """A delta of runs, and the plain checkpoint of it and its base."""
        delta, whole = self.work / f"{name}_delta", self.work / name
        names = (f"{each}={arm.workdir}" for each, arm in of.items())
        start = ("--base", str(base.workdir))
        return [
            Made(delta, ("compose", expression, str(delta), "--delta", *names, *start)),
            Made(whole, ("merge", str(delta), str(whole), *start)),
        ]


def written(path: Path, make: Callable[[], str]) -> None:
    """Writes a file that is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(make(), encoding="utf-8")
        part.rename(path)


def novels(directory: Path) -> list[str]:
    """Paragraphs of 20 words and more, 60,000 at most."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.txt")))
    parts = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if part.count(" ") >= 20][:60_000]


def say(study: str, arm: str, **values: Any) -> None:
    """A line."""
    print(json.dumps({"study": study, "arm": arm, **values}), flush=True)


def read(made: Made) -> Any:
    """What a command wrote."""
    return json.loads(made.output.read_text(encoding="utf-8"))


def rows(study: Study) -> None:
    """Methods beside all weights, by the number of rows."""
    lot = random.Random(study.options.seed)

    def shuffled(table: list[list[str]]) -> list[list[str]]:
        labels = [row[1] for row in table]
        lot.shuffle(labels)
        return [[row[0], label] for row, label in zip(table, labels, strict=True)]

    changes: dict[str, Callable[[list[list[str]]], list[list[str]]]] = {
        "100": lambda table: table[:100],
        "1000": lambda table: table[:1000],
        "all": lambda table: table,
        "shuffled": shuffled,
    }
    arms = {}
    for name, change in changes.items():
        folder = study.sst2(name, change)
        for method, (line, rate) in METHODS.items():
            if name == "shuffled" and method not in ("full", "lora"):
                continue
            own = ("--data.directory", folder)
            own += ("--data.pack", "False") if method == "prompt" else ()
            arms[name, method] = study.tuned(f"rows_{name}_{method}", "sst2", line, *own, rate=rate)
    run_all(list(arms.values()), at_once=2)
    for (name, method), arm in arms.items():
        say("rows", method, rows=name, accuracy=arm.last("validation/accuracy"))


def arithmetic(study: Study) -> None:
    """Task vectors."""
    one, other = study.tuned("sst2", "sst2"), study.tuned("mrpc", "mrpc")
    both = study.mixed("both", ("sst2", "mrpc"), "")
    run_all([one, other, both], at_once=2)
    runs = {"sst2": one, "mrpc": other, "both": both}
    sums = {"sum": "sst2 + mrpc", "mean": "0.5 * sst2 + 0.5 * mrpc"}
    for task in ("sst2", "mrpc"):
        sums |= {f"less_{c}_{task}": f"both - 0.{c} * {task}" for c in (1, 2, 3)}
    made = [
        study.composed(name, line, study.base, **{k: v for k, v in runs.items() if k in line})
        for name, line in sums.items()
    ]
    for stage in zip(*made, strict=True):
        run_all(list(stage), at_once=2)
    checkpoints = [arm.workdir for arm in (study.base, one, other, both)]
    checkpoints += [whole.output for _, whole in made]
    measured = [study.evaluated(checkpoint, both) for checkpoint in checkpoints]
    run_all(measured, at_once=2)
    for checkpoint, each in zip(checkpoints, measured, strict=True):
        say("arithmetic", checkpoint.name, metrics=read(each))


def exchanged(text: str, words: Mapping[str, str]) -> str:
    """A text in which each word is another one."""
    return re.sub(r"\w+", lambda found: words.get(found.group(), found.group()), text)


def other_words(text: str, seed: int) -> dict[str, str]:
    """For each word another one that is about as frequent, one for one."""
    ranked = [word for word, _ in Counter(re.findall(r"\w+", text)).most_common()]
    lot, found = random.Random(seed), {}
    for first in range(0, len(ranked), 50):
        these = ranked[first : first + 50]
        found |= dict(zip(these, lot.sample(these, len(these)), strict=True))
    return found


def language(study: Study) -> None:
    """A language's module under a task's, for a pair that no run has seen."""
    import t5x_lite

    text = (study.work / "text" / "novels.txt").read_text(encoding="utf-8")
    sentences = "\n".join(row[0] for row in study.table("sst2", "dev"))
    words = other_words(f"{text}\n{sentences}", study.options.seed)
    written(study.work / "text_xx" / "novels.txt", lambda: exchanged(text, words))
    written(study.work / "text_en" / "novels.txt", lambda: text)
    kinds = {"bottleneck": "seq_bn(reduction=2)", "sparse": "sparse(density=0.05)"}
    starts = ("--init", str(study.base.workdir))
    languages = {
        (kind, name): study.pretrained(
            f"{name}_{kind}_{study.options.seed}",
            f"text_{name}",
            study.options.steps,
            *(*starts, "--adapters.add", f"{name} = {line}"),
            *("--optimizer.schedule.peak", str(OF_MODULES)),
        )
        for kind, line in kinds.items()
        for name in ("en", "xx")
    }
    run_all(list(languages.values()), at_once=2)
    uses = {"bottleneck": "Stack({}, task), table", "sparse": "{}, task"}
    alone = {"bottleneck": "task, table", "sparse": "task"}
    tasks = {}
    for kind, line in kinds.items():
        en = str(languages[kind, "en"].workdir)
        own = alone[kind].split(", ")
        lines = {"task": f"task = {line}", "table": TABLE}
        added = ("--adapters.add", *(lines[each] for each in own))
        above = ("--adapters.load", f"en={en}", "--adapters.use", uses[kind].format("en"))
        name, train = f"task_{kind}", ("--adapters.train", *own)
        options = {"rate": OF_MODULES}
        tasks[kind, True] = study.tuned(name, "sst2", "", *added, *above, *train, **options)
        tasks[kind, False] = study.tuned(f"{name}_alone", "sst2", "", *added, **options)
    run_all(list(tasks.values()), at_once=2)
    dev = study.table("sst2", "dev")
    for (kind, stacked), arm in tasks.items():
        model = t5x_lite.load(str(arm.workdir))
        chosen = {"alone": alone[kind]}
        if stacked:
            model.add_adapter("xx", str(languages[kind, "xx"].workdir))
            chosen = {name: uses[kind].format(name) for name in ("en", "xx")}
        for name, use in chosen.items():
            model.use(use)
            for spoken in ("en", "xx"):
                texts = [row[0] if spoken == "en" else exchanged(row[0], words) for row in dev]
                found = model.generate([f"sst2 sentence: {each}" for each in texts])
                right = sum(
                    answer.strip() == ("negative", "positive")[int(row[1])]
                    for answer, row in zip(found, dev, strict=True)
                )
                say(
                    *("language", f"{kind}, {use}"),
                    under=name,
                    answers_in=spoken,
                    accuracy=round(right / len(dev), 4),
                )


def widths(study: Study) -> None:
    """T5's adapter layers and gradual unfreezing."""
    steps = str(study.options.steps)
    arms = [study.tuned("sst2", "sst2")]
    arms += [
        study.tuned(f"t5_adapter_{d}", "sst2", f"x = t5_adapter(d={d})") for d in (32, 128, 512)
    ]
    arms.append(study.tuned("gradual", "sst2", "", "--optimizer.unfreezing.total-steps", steps))
    run_all(arms, at_once=2)
    for arm in arms:
        say("widths", arm.workdir.name, accuracy=arm.last("validation/accuracy"))


def fusion(study: Study) -> None:
    """AdapterFusion on RTE."""
    single = {
        task: study.tuned(f"{task}_module", task, f"{task} = seq_bn(reduction=4)")
        for task in FOLDERS
    }
    run_all(list(single.values()), at_once=2)
    arms = [single["rte"]]
    for names in (("sst2", "mrpc"), ("sst2", "mrpc", "rte")):
        loaded = (f"{name}={single[name].workdir}" for name in names)
        use = ("--adapters.use", f"Fuse({', '.join(names)})", "--adapters.train", "fusion")
        name = f"fused_{'_'.join(names)}"
        arms.append(study.tuned(name, "rte", "", "--adapters.load", *loaded, *use))
    run_all(arms, at_once=2)
    for arm in arms:
        say("fusion", arm.workdir.name, accuracy=arm.last("validation/accuracy"))


def routing(study: Study) -> None:
    """One module and three, on three tasks at once."""
    one = ("--adapters.add", TABLE, f"x = lora(r=12, {IN_LAYERS})")
    three = ("--adapters.add", TABLE, *(f"{name} = lora(r=4, {IN_LAYERS})" for name in "abc"))
    arms = [study.mixed("route_none", tuple(FOLDERS), "", *one)]
    for kind in ("soft", "hard"):
        use = ("--adapters.use", f"table, Route(a, b, c, by='token', kind='{kind}')")
        arms.append(study.mixed(f"route_{kind}", tuple(FOLDERS), "", *three, *use))
    run_all(arms, at_once=1)
    measured = [study.evaluated(arm.workdir, arm) for arm in arms]
    run_all(measured, at_once=2)
    for arm, each in zip(arms, measured, strict=True):
        speed = arm.last("steps_per_second")
        say("routing", arm.workdir.name, steps_per_second=speed, metrics=read(each))


def few_shot(study: Study) -> None:
    """Orders of the same examples, on a model that learned the task."""
    arm = study.tuned("sst2", "sst2")
    run_all([arm], at_once=1)
    shown = "--evaluation.few-shot."
    made = Made(
        study.work / "measured" / "few_shot" / "metrics.json",
        (
            *("evaluate", str(arm.workdir / "config.json"), "--checkpoint"),
            *(str(arm.workdir), "--evaluation.loss", "False", "--evaluation.rank", "True"),
            *(f"{shown}examples", "4", f"{shown}seeds", "0", "1", "2", f"{shown}orders", "4"),
            *("--output", str(study.work / "measured" / "few_shot")),
        ),
    )
    run_all([made], at_once=1)
    say("few_shot", arm.workdir.name, few_shot=read(made)["few_shot"])


def masks(study: Study) -> None:
    """The places that two tasks choose."""
    import numpy as np

    from t5x_lite import deltas

    lines = {
        "magnitude": "x = sparse(density=0.005, select='magnitude')",
        "change": "x = sparse(density=0.005, select='change')",
        "movement": "x = movement(density=0.15)",
    }
    arms = {
        (how, task): study.tuned(f"{how}_{task}", task, line)
        for how, line in lines.items()
        for task in ("sst2", "mrpc")
    }
    run_all(list(arms.values()), at_once=2)

    def kept(part: Any) -> Any:
        if isinstance(part, deltas.Several):
            return next((found for each in part.parts if (found := kept(each)) is not None), None)
        if isinstance(part, deltas.Sparse):
            places = np.zeros(int(np.prod(part.size)), bool)
            places[np.asarray(part.indices)] = True
            return places
        return part.kept().reshape(-1) if isinstance(part, deltas.Mask) else None

    def chosen(arm: Arm) -> dict[str, Any]:
        parts = deltas.load(str(arm.workdir)).parts
        return {path: kept(part) for path, part in parts.items()}

    for how, line in lines.items():
        one, other = (chosen(arms[how, task]) for task in ("sst2", "mrpc"))
        paths = sorted(path for path in {*one, *other} if one.get(path) is not None)
        paths = [path for path in paths if other.get(path) is not None]
        a, b = (np.concatenate([each[path] for path in paths]) for each in (one, other))
        common = float((a & b).sum() / sum(x.sum() for x in one.values() if x is not None))
        # Arrays of which nothing was chosen have no part.
        chance = 0.005 if "0.005" in line else float(b.mean())
        said = {"kept": int(a.sum()), "in_common": round(common, 4), "by_chance": round(chance, 4)}
        say("masks", how, **said)


STUDIES: dict[str, Callable[[Study], None]] = {
    each.__name__: each
    for each in (rows, arithmetic, language, widths, fusion, routing, few_shot, masks)
}


def main() -> None:
    """Makes what is not there yet, and prints the lines of a study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", nargs="+", choices=STUDIES, metavar="STUDY")
    parser.add_argument("--glue", required=True, help="with SST-2, MRPC and RTE as they come")
    parser.add_argument("--prose", required=True, help="a directory of *.txt")
    parser.add_argument("--output", required=True)
    parser.add_argument("--base-steps", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    study = Study(options)
    study.write()
    run_all([study.base], at_once=1)
    for name in options.studies:
        STUDIES[name](study)


if __name__ == "__main__":
    main()
