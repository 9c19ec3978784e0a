"""index build, search and bench: the options that reach `run`."""

import pytest

from t5x_lite.cli import main
from t5x_lite.retrieval.faiss_index import Settings


def test_build(check_call):
    check_call(
        "index build --vectors a b --ids c --output d --kind HNSW32,Flat --ef-construction 40 "
        "--seed 3 --threads 2 --train-vectors 9",
        "indexing.build_index",
        (("a", "b"),),
        {
            "ids": ("c",),
            "output": "d",
            "kind": "HNSW32,Flat",
            "settings": Settings(train_vectors=9, ef_construction=40, seed=3, threads=2),
        },
    )


def test_search(check_call):
    check_call(
        "index search --index d --queries q.npy --output r --nprobe 8 --depth 10",
        "indexing.search_index",
        ("d",),
        {
            "queries": "q.npy",
            "query_ids": (),
            "encoder": None,
            "output": "r",
            "depth": 10,
            "nprobe": 8,
            "ef_search": None,
            "threads": 1,
            "same_ids": "keep",
            "format": None,
            "tag": "faiss",
        },
    )


def test_bench(check_call):
    check_call(
        "index bench --indexes a b --vectors c --queries q --nprobe 1 2 --output o",
        "indexing.bench_index",
        (("a", "b"), ("c",)),
        {
            "queries": "q",
            "depth": 10,
            "nprobe": (1, 2),
            "ef_search": (16, 64, 128, 256),
            "threads": 1,
            "output": "o",
        },
    )


@pytest.mark.parametrize(
    "line",
    [
        "index build --vectors a --output d --threads 0",
        "index search --index d --queries q --output r --nprobe 0",
        "index bench --indexes d --vectors a --queries q --nprobe 0",
    ],
)
def test_numbers_that_are_too_small(line, capsys):
    assert main(line.split()) == 2
    assert capsys.readouterr().err
