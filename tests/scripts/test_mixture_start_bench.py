"""scripts/bench/mixture_start.py: its documents, and a small run of it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "mixture_start.py"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.delitem(sys.modules, "mixture_start", raising=False)
    import mixture_start

    return mixture_start


def test_documents_are_in_shards_of_c4(bench, tmp_path):
    bench.write_documents(tmp_path / "c4", documents=7, shards=3)
    names = [f"c4-train.0000{shard}-of-00003.json.gz" for shard in range(3)]
    texts = []
    for name in names:
        with gzip.open(tmp_path / "c4" / name, "rt") as file:
            texts += [json.loads(line)["text"].split() for line in file]
    assert sorted(int(text[0]) for text in texts) == [*range(7)]
    assert min(len(text) for text in texts) >= 100


def test_all_other_tasks_are_left_out(bench):
    names = bench.left_out("all_mix")
    assert {"glue_cola", "super_glue_rte", "wmt_enro", "squad_squad"} < set(names)
    assert not {"glue_sst2", "glue_rte", "super_glue_cb", "c4_iid_15_u_u"} & set(names)


@pytest.mark.slow  # two trainings
@pytest.mark.exhaustive
def test_a_small_run(tmp_path):
    pytest.importorskip("seqio")
    options = ["--documents", "40000", "--shards", "2", "--alone", "--mixing", "maximum=65536"]
    command = [sys.executable, str(SCRIPT), str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert (result["documents"], result["shards"]) == (40_000, 2)
    assert 0 < result["documents_read"] < 40_000
    assert result["seconds"] > 0 < result["alone"]["seconds"]
    assert not (tmp_path / "c4").exists()
