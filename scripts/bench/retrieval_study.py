"""E4 to E8 and E11: pilots of fine-tuned retrievers, by the command line alone.

    python scripts/bench/retrieval_study.py negatives --beir CRANFIELD --prose NOVELS \
        --vocabulary vocab.txt --output WORK [--base-steps 600] [--steps 200] [--seed 0]

| study | arms |
|---|---|
| `negatives` (E4) | negatives of the batch alone; and of BM25; and mined at places 0-200, 10-210, and 0-200 with a margin of 0.05 |
| `teacher` (E5) | a cross-encoder that ranks BM25's first 100 again; a bi-encoder that learns from its scores, and one that learns from the same rows without them |
| `heads` (E6) | M3; without learning from the sum; with equal weights; with 50 steps of the heads alone before |
| `long` (E7) | chapters of novels, found by sentences that were taken out of them: M3's ways, one [CLS] and several |
| `lengths` (E8) | steps on pieces of 40 to 1,400 words, in batches of one shape and by length: tokens a second, and the share of padding |
| `stages` (E11) | M3's fine-tuning alone, behind RetroMAE, and behind RetroMAE and pairs of sentences |

All begin with one small BERT of bert_tiny.py that learned from the novels and the documents of
Cranfield. Its pairs are titles with their abstracts; no query and no judgement is read. BM25 is
beside every table. WORK keeps what was made: it is not made again, and a killed command goes on.
One JSON line a run: nDCG@10, MRR@10 and recall@100 on Cranfield's 225 queries. One seed tells no
order; shares of a pilot say what the commands do, not what the papers' sizes would give.
"""  # noqa: E501

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from arms import Arm, Made, run_all

os.environ.setdefault("JAX_PLATFORMS", "cpu")

METRICS = ("ndcg@10", "mrr@10", "recall@100")
WAYS = ("dense", "lexical", "multi_vector", "dense_lexical", "all")
HEADS = ("--heads", "dense", "lexical", "multi_vector")


class Study:
    """The places of everything, and the jobs that the studies share."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.work = options, Path(options.output)
        self.corpus = f"{options.beir}/corpus.jsonl"
        self.queries = f"{options.beir}/queries.jsonl"
        self.base = Arm(
            self.work / "base",
            options.base_steps,
            (
                "configs/pretrain/bert_tiny.py",
                *("--data.directory", str(self.work / "text"), *self._common()),
                *("--data.inputs-length", "64", "--data.batch-size", "64"),
                *self._schedule(1e-3, options.base_steps),
            ),
        )
        self.pairs = Made(
            self.work / "pairs" / "train.jsonl",
            (
                *("pairs", "--input", self.corpus, "--rule", "title_body"),
                *("--min-passage-words", "20"),
                *("--output", str(self.work / "pairs" / "train.jsonl")),
            ),
        )
        index = self.work / "bm25"
        self.index = Made(index, ("bm25", "build", "--input", self.corpus, "--output", str(index)))

    def _common(self) -> tuple[str, ...]:
        return ("--data.vocabulary", self.options.vocabulary, "--evaluation.loss", "False")

    def _schedule(self, peak: float, steps: int) -> tuple[str, ...]:
        start = "--optimizer.schedule."
        return (
            *(f"{start}peak", str(peak), f"{start}total-steps", str(steps + 1)),
            *(f"{start}warmup-steps", str(max(1, steps // 10))),
        )

    def prepare(self) -> None:
        """Writes the texts, and makes the base, the pairs and the index of BM25."""
        folder = self.work / "text"
        if not (folder / "documents.txt").exists():
            folder.mkdir(parents=True, exist_ok=True)
            novels = sorted(Path(self.options.prose).glob("*.txt"))[: self.options.novels]
            texts = [text for novel in novels for text in passages(novel)]
            lines = Path(self.corpus).read_text().splitlines()
            texts += [json.loads(line)["text"] for line in lines]
            part = folder / "documents.part"
            part.write_text("\n\n".join(" ".join(text.split()) for text in texts) + "\n")
            part.rename(folder / "documents.txt")
        for folder in ("pairs", "runs", "measured"):
            (self.work / folder).mkdir(exist_ok=True)
        run_all([self.base, self.pairs, self.index], at_once=2)
        run_all([self.bm25("bm25", self.queries)], at_once=1)

    def bm25(self, name: str, queries: str, *, index: Path | None = None) -> Made:
        """A run of BM25."""
        output = self.work / "runs" / f"{name}.trec"
        return Made(
            output,
            (
                *("bm25", "search", "--index", str(index or self.index.output)),
                *("--queries", queries, "--output", str(output)),
            ),
        )

    def tuned(self, name: str, config: str, start: Arm, *more: str, steps: int = 0) -> Arm:
        """A run that begins from another one."""
        steps = steps or self.options.steps
        return Arm(
            self.work / name,
            steps,
            (
                f"configs/{config}.py",
                *("--init", str(start.workdir), "--seed", str(self.options.seed)),
                *self._common(),
                *self._schedule(3e-4, steps),
                *more,
            ),
        )

    def searched(self, arm: Arm) -> tuple[Made, Made]:
        """The corpus' vectors of a retriever, and its run."""
        name = arm.workdir.name
        vectors, run = self.work / "runs" / f"{name}.npy", self.work / "runs" / f"{name}.trec"
        embed = Made(
            vectors,
            (
                *("embed", "--checkpoint", str(arm.workdir), "--input", self.corpus),
                *("--role", "passage", "--output", str(vectors)),
            ),
        )
        search = Made(
            run,
            (
                *("search", "--vectors", str(vectors), "--ids", self.corpus),
                *("--checkpoint", str(arm.workdir), "--queries", self.queries),
                *("--output", str(run)),
            ),
        )
        return embed, search

    def search_all(self, arms: Sequence[Arm]) -> list[Path]:
        """The runs of retrievers, made where they are not there."""
        found = [self.searched(arm) for arm in arms]
        run_all([embed for embed, _ in found], at_once=2)
        run_all([search for _, search in found], at_once=2)
        return [search.output for _, search in found]

    def mined(self, name: str, *more: str) -> Made:
        """The pairs with negatives, NAME/train.jsonl."""
        output = self.work / name / "train.jsonl"
        output.parent.mkdir(parents=True, exist_ok=True)
        return Made(
            output,
            (
                *("mine", "--input", str(self.pairs.output), "--passages", self.corpus),
                *("--negatives", "16", "--output", str(output), *more),
            ),
        )

    def measure(self, name: str, runs: Sequence[Path], *, qrels: str = "") -> None:
        """Prints a JSON line for each run."""
        output = self.work / "measured" / name
        judged = qrels or f"{self.options.beir}/qrels/test.tsv"
        run_all(
            [
                Made(
                    output / "metrics.json",
                    (
                        *("evaluate-run", "--runs", *map(str, runs), "--qrels", judged),
                        *("--metrics", *METRICS, "--output", str(output)),
                    ),
                )
            ],
            at_once=1,
        )
        print((output / "metrics.json").read_text())


def passages(novel: Path) -> Iterator[str]:
    """Runs of a novel's paragraphs of about 120 words."""
    held: list[str] = []
    for paragraph in re.split(r"\n\s*\n", novel.read_text(encoding="utf-8")):
        held += paragraph.split()
        if len(held) >= 120:
            yield " ".join(held)
            held = []


def negatives(study: Study) -> None:
    """E4."""
    config = "finetune/contrastive_tiny"
    own = ("--data.directory", str(study.pairs.output.parent))
    alone = study.tuned("negatives_batch", config, study.base, *own)
    run_all([alone], at_once=1)
    titles = study.work / "titles.jsonl"
    if not titles.exists():
        lines = study.pairs.output.read_text().splitlines()
        asked = [json.loads(line)["query"] for line in lines]
        # The ids of rows without one are their numbers.
        lines = (json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(asked))
        titles.write_text("".join(f"{line}\n" for line in lines))
    ranked = study.bm25("titles", str(titles))
    run_all([ranked], at_once=1)
    searched = ("--checkpoint", str(alone.workdir))
    mined = {
        "bm25": study.mined("mined_bm25", "--rankings", str(ranked.output), "--first", "0"),
        "0-200": study.mined("mined_0", *searched, "--first", "0", "--last", "200"),
        "10-210": study.mined("mined_10", *searched, "--first", "10", "--last", "210"),
        "margin": study.mined(
            "mined_margin", *searched, "--first", "0", "--last", "200", "--margin", "0.05"
        ),
    }
    run_all(list(mined.values()), at_once=2)
    arms = [
        study.tuned(
            f"negatives_{name}",
            *(config, alone),
            *("--data.directory", str(made.output.parent), "--data.layout.negatives", "3"),
            *("--data.batch-size", "16"),
        )
        for name, made in mined.items()
    ]
    more = study.tuned("negatives_batch_more", config, alone, *own)
    run_all([more, *arms], at_once=2)
    bm25 = study.work / "runs" / "bm25.trec"
    study.measure("negatives", [bm25, *study.search_all([alone, more, *arms])])


def teacher(study: Study) -> None:
    """E5."""
    own = ("--data.directory", str(study.pairs.output.parent))
    first = study.tuned("first", "finetune/contrastive_tiny", study.base, *own)
    run_all([first], at_once=1)
    mined = study.mined("mined_first", "--checkpoint", str(first.workdir), "--first", "5")
    run_all([mined], at_once=1)
    rows = ("--data.directory", str(mined.output.parent))
    ranker = study.tuned("ranker", "finetune/cross_encoder_tiny", study.base, *rows)
    run_all([ranker], at_once=1)
    bm25, reranked = (study.work / "runs" / f"{name}.trec" for name in ("bm25", "reranked"))
    scored = study.work / "scored" / "train.jsonl"
    scored.parent.mkdir(exist_ok=True)
    checkpoint = ("--checkpoint", str(ranker.workdir))
    again = ("rerank", *checkpoint, "--input", str(bm25), "--beir", study.options.beir)
    scores = ("score-pairs", *checkpoint, "--input", str(mined.output), "--output", str(scored))
    run_all([Made(reranked, (*again, "--output", str(reranked))), Made(scored, scores)], at_once=2)
    rows = ("--data.directory", str(scored.parent))
    size = ("--data.batch-size", "16", "--data.layout.negatives", "7")
    arms = [
        study.tuned("student", "finetune/distill_tiny", first, *rows),
        study.tuned("alone", "finetune/contrastive_tiny", first, *rows, *size),
    ]
    run_all(arms, at_once=2)
    study.measure("teacher", [bm25, reranked, *study.search_all([first, *arms])])


def by_ways(study: Study, arms: Sequence[Arm]) -> None:
    """Measures checkpoints of M3 by each way, and prints a JSON line of each."""
    measured = [
        Made(
            study.work / "measured" / arm.workdir.name / "metrics.json",
            (
                *("evaluate", str(arm.workdir / "config.json"), "--checkpoint", str(arm.workdir)),
                *("--evaluation.loss", "False", "--evaluation.task-metrics", "False"),
                *("--evaluation.split", "test", "--evaluation.batch-size", "32"),
                *("--evaluation.retrieval.directory", study.options.beir),
                *("--evaluation.retrieval.ways", *WAYS),
                *("--output", str(study.work / "measured" / arm.workdir.name)),
            ),
        )
        for arm in arms
    ]
    run_all(measured, at_once=2)
    study.measure("bm25", [study.work / "runs" / "bm25.trec"])
    for arm, made in zip(arms, measured, strict=True):
        print(json.dumps({"arm": arm.workdir.name, **json.loads(made.output.read_text())}))


def heads(study: Study) -> None:
    """E6."""
    config, half = "finetune/m3_tiny", study.options.steps // 4
    own = ("--data.directory", str(study.pairs.output.parent))
    learns = ("--objective.distill-from", str(half))
    warm = study.tuned("m3_warm", config, study.base, *own, "--train", "heads/.*", steps=half)
    run_all([warm], at_once=1)
    equal = ("--objective.weights", "1", "1", "1", "--objective.loss-weights", "1", "1", "1")
    arms = [
        study.tuned("m3", config, study.base, *own, *learns),
        study.tuned("m3_no_teacher", config, study.base, *own, "--objective.distill-from", "None"),
        study.tuned("m3_equal_weights", config, study.base, *own, *learns, *equal),
        study.tuned("m3_behind_heads", config, warm, *own, *learns),
    ]
    run_all(arms, at_once=2)
    by_ways(study, arms)


def stages(study: Study) -> None:
    """E11."""
    config, steps = "finetune/m3_tiny", study.options.steps
    own = ("--data.directory", str(study.pairs.output.parent))
    learns = ("--objective.distill-from", str(steps // 4))
    text = ("--data.directory", str(study.work / "text"), "--data.inputs-length", "64")
    retromae = study.tuned("retromae", "pretrain/retromae_tiny", study.base, *text)
    sentences = study.work / "sentences" / "train.jsonl"
    sentences.parent.mkdir(exist_ok=True)
    documents = str(study.work / "text" / "documents.txt")
    rule = ("pairs", "--input", documents, "--rule", "sentences", "--output", str(sentences))
    run_all([retromae, Made(sentences, rule)], at_once=2)
    unsupervised = study.tuned(
        *("unsupervised", "finetune/contrastive_tiny", retromae),
        *("--data.directory", str(sentences.parent), "--objective.pooling", "cls"),
    )
    run_all([unsupervised], at_once=1)
    starts = {"alone": study.base, "retromae": retromae, "both": unsupervised}
    arms = [
        study.tuned(f"stages_{name}", config, start, *own, *learns)
        for name, start in starts.items()
    ]
    run_all(arms, at_once=2)
    by_ways(study, arms)


def long_documents(study: Study, folder: Path) -> None:
    """A BEIR directory: pieces of novels of 700 to 6,000 words, without one sentence of each."""
    if (folder / "qrels" / "test.tsv").exists():
        return
    documents, queries, judged = [], [], ["query-id\tcorpus-id\tscore"]
    for novel in sorted(Path(study.options.prose).glob("*.txt")):
        words = list(passages(novel))
        for place, size in zip(range(0, len(words) - 50, 60), (6, 12, 25, 50), strict=False):
            parts = re.split(r"(?<=[.!?])\s+", " ".join(words[place : place + size]))
            middle = [i for i, part in enumerate(parts) if 12 <= len(part.split()) <= 40]
            if not middle:
                continue
            asked = parts.pop(middle[len(middle) // 2])
            name = f"{novel.stem}_{place}"
            documents.append({"_id": name, "title": "", "text": " ".join(parts)})
            queries.append({"_id": f"q_{name}", "text": asked})
            judged.append(f"q_{name}\t{name}\t1")
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, records in (("corpus", documents), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged) + "\n")


def long(study: Study) -> None:
    """E7."""
    folder = study.work / "chapters"
    long_documents(study, folder)
    own = ("--data.directory", str(study.pairs.output.parent))
    learns = ("--objective.distill-from", str(study.options.steps // 4))
    arm = study.tuned("m3", "finetune/m3_tiny", study.base, *own, *learns)
    index = Made(
        study.work / "chapters_bm25",
        (
            *("bm25", "build", "--input", str(folder / "corpus.jsonl")),
            *("--output", str(study.work / "chapters_bm25")),
        ),
    )
    run_all([arm, index], at_once=2)
    asked = folder / "queries.jsonl"
    ranked = study.bm25("chapters", str(asked), index=index.output)
    runs, made = [ranked.output], []
    embed = ("embed", "--checkpoint", str(arm.workdir), *HEADS)
    queries = study.work / "chapters_queries"
    made.append(Made(queries, (*embed, "--input", str(asked), "--output", str(queries))))
    for name, more in (("one_cls", ()), ("mcls", ("--mcls", "64"))):
        output = study.work / f"chapters_{name}"
        texts = ("--input", str(folder / "corpus.jsonl"), "--inputs-length", "512")
        made.append(Made(output, (*embed, *texts, *more, "--output", str(output))))
    run_all([ranked, *made], at_once=2)
    found = []
    for name in ("one_cls", "mcls"):
        output, corpus = study.work / f"chapters_{name}_runs", study.work / f"chapters_{name}"
        sources = ("--corpus", str(corpus), "--queries", str(queries))
        weights = ("--weights", "0.15", "0.5", "0.35", "--pair-weights", "0.2", "0.8")
        found.append(Made(output, ("hybrid", *sources, *weights, "--output", str(output))))
        runs += [output / f"{way}.trec" for way in WAYS]
    run_all(found, at_once=2)
    study.measure("long", runs, qrels=str(folder / "qrels" / "test.tsv"))


SHAPES = {64: 32, 128: 16, 256: 8, 512: 4, 1024: 2, 2048: 1}
_CONFIG = """import dataclasses

from configs.finetune.contrastive_tiny import experiment as tiny
from t5x_lite.data.config import Fixed, Scheduled

experiment = dataclasses.replace(
    tiny,
    model=tiny.model.replace(max_positions=2048, attention="blocked"),
    data=dataclasses.replace(
        tiny.data, inputs_length=64, targets_length=2048, batch_size=1, batches={batches}
    ),
)
"""


def lengths(study: Study) -> None:
    """E8."""
    folder = study.work / "lengths"
    folder.mkdir(exist_ok=True)
    texts = folder / "train.jsonl"
    if not texts.exists():
        records, sizes = [], (1, 1, 1, 1, 2, 2, 4, 8, 12)
        for novel in sorted(Path(study.options.prose).glob("*.txt"))[: study.options.novels]:
            parts = list(passages(novel))[:400]
            for place, part in enumerate(parts[:-12:4]):
                size = sizes[place % len(sizes)]
                words = " ".join(parts[4 * place : 4 * place + size]).split()
                cut = words[: 40 if place % 3 == 0 else None]
                records.append({"query": " ".join(part.split()[:12]), "pos": [" ".join(cut)]})
        texts.write_text("".join(json.dumps(record) + "\n" for record in records))
    arms, own = [], ("--data.directory", str(folder), *study._common())
    for name, batches in (("fixed", "Fixed()"), ("scheduled", f"Scheduled({SHAPES})")):
        config = folder / f"{name}.py"
        config.write_text(_CONFIG.format(batches=batches))
        cache = folder / f"{name}_cache"
        made = ("cache", str(config), *own, "--splits", "train", "--output", str(cache))
        run_all([Made(cache, made)], at_once=1)
        more = ("--data.cache", str(cache), "--log-period", "20")
        arms.append(Arm(folder / name, study.options.steps, (str(config), *own, *more)))
    for arm in arms:  # one after the other: they are timed
        run_all([arm], at_once=1)
        rates = arm.metric("tokens_per_second")
        last = [rate for step, rate in rates.items() if step > arm.steps // 2]
        lines = [line for line in arm.log.read_text().splitlines() if "padding of the" in line]
        print(json.dumps({"arm": arm.workdir.name, "tokens_per_second": last, "log": lines}))


STUDIES = {
    "lengths": lengths,
    "negatives": negatives,
    "teacher": teacher,
    "heads": heads,
    "long": long,
    "stages": stages,
}


def main() -> None:
    """Runs what is not there yet, and prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--beir", required=True, help="Cranfield in BEIR's format")
    parser.add_argument("--prose", required=True, help="a directory of novels, *.txt")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt of the uncased BERT")
    parser.add_argument("--output", required=True)
    parser.add_argument("--novels", type=int, default=10, help="that the base learns from")
    parser.add_argument("--base-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    study = Study(options)
    study.prepare()
    STUDIES[options.study](study)


if __name__ == "__main__":
    main()
