"""Tables of retrieval_pretrain_study.py, printed as markdown."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from retrieval_pretrain_texts import paired

from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.retromae import Condenser


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def report(study: Any, tables: Mapping[str, Sequence[str]], arms: Mapping[str, Any]) -> None:
    """Prints markdown; of several seeds the mean over them, and paired differences over queries."""

    def mean(names: Sequence[str], pooling: str, what: str) -> np.ndarray:
        found = [study.measured(f"{n}-{pooling}", lambda n=n: study.vectors(n, pooling))[what]
                 for n in names]  # fmt: skip
        return np.mean(np.array(found), axis=0)

    print("\n| encoder | known item, [CLS] | mean | Cranfield, [CLS] | mean | uniformity | "
          "tuned: known item, [CLS] | less MLM | Cranfield |\n|" + "---|" * 9)  # fmt: skip
    found = study.measured("bm25", study.bm25)
    print(f"| BM25 | {np.mean(found['known_item']):.3f} | | {np.mean(found['cranfield']):.3f} |"
          " | | | | |")  # fmt: skip
    base = mean(tables["MLM"][1::2], "cls", "known_item")
    for name, made in tables.items():
        cells = []
        for what in ("known_item", "cranfield"):
            cells += [f"{mean(made[::2], pooling, what).mean():.3f}" for pooling in ("cls", "mean")]
        cells.append(f"{mean(made[::2], 'cls', 'uniformity'):.2f}")
        tuned = mean(made[1::2], "cls", "known_item")
        cells += [f"{tuned.mean():.3f}", f"{paired(tuned - base)}"]
        cells.append(f"{mean(made[1::2], 'cls', 'cranfield').mean():.3f}")
        print(f"| {name} | {' | '.join(cells)} |")
    print("\n| encoder | entropy of [CLS]'s attention, by layer | paid to [CLS], by layer |")
    print("|---|---|---|")
    for name, made in tables.items():
        rows = study.measured(f"{made[0]}-attention", lambda m=made[0]: study.attention(m))
        columns = [
            " ".join(f"{value:.3f}" for value in column) for column in zip(*rows, strict=True)
        ]
        print(f"| {name} | {columns[0]} | {columns[1]} |")
    print(
        "\n| Condenser | head's loss with its own late [CLS] | with another row's |\n|---|---|---|"
    )
    for name, made in tables.items():
        if isinstance(arms.get(name), Condenser):
            own, other = study.measured(
                f"{made[0]}-mechanism", lambda n=name, m=made[0]: study.mechanism(m, arms[n])
            )
            print(f"| {name} | {own:.3f} | {other:.3f} |")


def report_robustness(study: Any, tables: Mapping[str, Sequence[str]]) -> None:
    """E3: prints MRR@10 of known items, by [CLS], after each fine-tuning."""
    o = study.options
    kinds = [(f"pairs, wrong {share}", o.pairs_rows) for share in o.wrong_positives]
    kinds.append(("pairs", o.small_batch))
    shares = " | ".join(f"{share:.0%} wrong" for share in o.wrong_positives)
    print(f"\n| encoder | {shares} | batches of {o.small_batch} for {o.pairs_rows} |")
    print("|---" * (len(kinds) + 1) + "|")
    for name, made in tables.items():
        if name not in ("shared MLM", "MLM", "Condenser") and not name.startswith("coCondenser"):
            continue
        cells = []
        for kind, size in kinds:
            values = []
            for seed, source in enumerate(made[::2]):
                tuned = f"tuned-{slug(kind)}-{size}-{source}-{seed}"
                study.train(
                    *(tuned, Contrastive(pooling="cls"), kind),
                    start=source,
                    steps=o.tuning_steps * o.pairs_rows // size,
                    size=size,
                    peak=3e-4 * (size / o.pairs_rows) ** 0.5,
                    seed=300 + seed,
                )
                measured = study.measured(f"{tuned}-cls", lambda t=tuned: study.vectors(t, "cls"))
                values.append(float(np.mean(measured["known_item"])))
            cells.append(float(np.mean(values)))
        print(f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
