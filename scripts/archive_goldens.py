"""What a user of version 0.1 keeps, in miniature: later versions read and resume all of it.

    python scripts/archive_goldens.py archive        # by one commit: tests/golden/kept/kept.tar.xz
    python scripts/archive_goldens.py record         # tests/golden/kept/records.json, from it
    python scripts/archive_goldens.py record mlm m3  # the records of these runs

The archive holds a project with configs, tasks and an objective of a user, and what the commands
wrote in it: data, vocabularies, caches, a work directory of each objective, head and method of
modules, deltas, indexes, vectors, and a job of each resumable kind that was killed halfway. It is
written once, by the last commit before files and formats move, and never again: it is what users
have on their disks. The records hold what its checkpoints answer. A record is written again only
for a change of what is computed, whose reason then is in an ADR.

A killed job names its files by absolute paths and times. The archive has ROOT in place of the
directory and the time 0; `unpack` writes the directory in its place.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from scripts.net_goldens import WORDS, anonymous, inside, question

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "kept"
ARCHIVE, RECORDS = DIRECTORY / "kept.tar.xz", DIRECTORY / "records.json"
ROOT = "/a-directory-of-version-0.1"
SAVED, LAST = 4, 8
"""Steps of a run in the archive, and of its continuation."""
TEXTS = ["the river ran low .", "two men spoke by night when rain came over hills ."]

# The project of a user: files that are copied as they are, imports of deep modules and all.

_T5 = '''\
"""A T5 of a user, on a cache of text."""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.config import InverseSquareRoot

experiment = Experiment(
    model=T5Config(
        vocab_size=384,
        d_model=8,
        d_kv=4,
        d_ff=12,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout_rate=0.1,
    ),
    objective=Seq2Seq(z_loss=1e-4),
    data=Data(
        task="tasks.text:span_corruption",
        cache="caches/t5",
        directory="data/text",
        vocabulary="bytes",
        extra_ids=100,
        batch_size=4,
        inputs_length=24,
        targets_length=16,
        shuffle_buffer=32,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=10), min_dim_size_to_factor=4),
    steps=4,
    log_period=1,
    workdir="work/t5",
    checkpoints=Checkpoints(period=100),
    evaluation=Evaluation(period=100, loss=False, task_metrics=False),
)
'''
_BERT = '''\
"""A BERT of a user, on a cache of documents."""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite import layouts
from t5x_lite.data.config import Data
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.config import Linear

experiment = Experiment(
    model=BertConfig(
        vocab_size=48,
        d_model=8,
        d_ff=12,
        num_heads=2,
        num_layers=1,
        max_positions=32,
        token_types=2,
        dropout_rate=0.1,
    ),
    objective=MaskedLM(mask_id=4, whole_word=True),
    data=Data(
        task="tasks.encoder:documents",
        cache="caches/encoder",
        directory="data/paragraphs",
        layout=layouts.Encoder(),
        vocabulary="vocab.txt",
        extra_ids=0,
        batch_size=4,
        inputs_length=24,
        targets_length=24,
        pack=False,
        shuffle_buffer=32,
    ),
    optimizer=AdamW(schedule=Linear(peak=1e-3, warmup_steps=2, total_steps=100), clip_norm=1.0),
    steps=4,
    log_period=1,
    workdir="work/mlm",
    checkpoints=Checkpoints(period=100),
    evaluation=Evaluation(period=100, loss=False, task_metrics=False),
)
'''
_DERIVED = '''\
"""{name}: as configs/{base}.py, with another objective."""

import dataclasses

from configs.{base} import experiment as base
from t5x_lite import layouts
{imports}

experiment = dataclasses.replace(
    base,
    {changes}
    data=dataclasses.replace(base.data, {data}),
    workdir="work/{name}",
)
'''
_TASKS = '''\
"""Tasks of a user: a table by our stages, and text by a corruption of one's own."""

import seqio
import tensorflow as tf

from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.config import TaskArguments
from t5x_lite.layouts.labelled import NONE, of_class
from t5x_lite.data.postprocess import ClassIndex
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.labelled import Labelled
from t5x_lite.data.tasks.table_source import table_task, tables_of, texts_of_encoder
from t5x_lite.data.tasks.text_source import document_source
from t5x_lite.core.errors import InputError
from t5x_lite.metrics.classification import accuracy
from tasks.files import classify


def stars(arguments: TaskArguments) -> seqio.Task:
    """The label of a row."""
    import dataclasses

    columns = Columns(inputs="text: {text}", targets="{label}", labels=("0=bad", "1=good"))
    return classify(dataclasses.replace(arguments, columns=columns))
'''
_OBJECTIVE = '''\
"""An objective of a user: classification whose loss has a weight."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from flax import nnx

from t5x_lite.layouts import Labelled, Layout
from t5x_lite.models.heads import Head, HeadModules
from t5x_lite.models.heads import Classifier
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.dense import split_key
from t5x_lite.objectives.base import Loss, Objective
from t5x_lite.objectives.task_heads import Classify, ClassifyLoss
from t5x_lite.core.trees import Batch, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted(Classify):
    """As Classify, with another weight of its loss."""

    weight: float = 2.0
    layouts: ClassVar[tuple[type[Layout], ...]] = (Labelled,)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "WeightedLoss":
        """The loss module."""
        del model, rngs
        return WeightedLoss(self)


class WeightedLoss(ClassifyLoss):
    """The loss with its weight."""

    def __init__(self, config):
        super().__init__(config)
        self._weight = config.weight

    def __call__(self, *args, **kwargs) -> Loss:
        loss = super().__call__(*args, **kwargs)
        terms = {name: term._replace(scale=self._weight * term.scale)
                 for name, term in loss.terms.items()}  # fmt: skip
        return loss._replace(terms=terms)
'''
_OLD_IMPORTS = '''\
"""A config with a module name of a commit before 0.1."""

from configs.kept_t5 import experiment
from t5x_lite.data import stages
'''
_PAIRS = "task='tasks.pairs:jsonl', cache='', directory='data/pairs', layout=layouts.{layout}"
_GLUE = "task='tasks.glue:sst2', cache='', directory='data/glue', layout=layouts.Labelled()"


def _objective(module: str, call: str, data: str = "") -> tuple[str, str, str, str]:
    """A config of the BERT with another objective: base, imports, changes and data."""
    name = call.partition("(")[0]
    line = f"from t5x_lite.objectives.{module} import {name}"
    return "kept_bert", line, f"objective={call},", data


_MASKS = "mask_id=4, whole_word=True"
DERIVED = {
    "t5_live": ("kept_t5", "", "", "cache=''"),
    "t5_mixed": ("kept_t5", "", "", "cache=('caches/t5=0.75', 'caches/stars=0.25'), task=''"),
    "t5_table": (
        "kept_t5", "from t5x_lite.config import Evaluation", "evaluation=Evaluation(period=100),",
        "task='kept_tasks:stars', cache='', directory='data/table'",
    ),
    "t5_pieces": ("kept_t5", "", "", "cache='', vocabulary='pieces', extra_ids=10"),
    "lm": (
        "kept_t5",
        "from t5x_lite.models.lm import LMConfig\n"
        "from t5x_lite.objectives.likelihood import LanguageModel",
        "objective=LanguageModel(),\n    model=LMConfig(vocab_size=384, d_model=8, d_kv=4, d_ff=12,"
        " num_heads=2, num_layers=1, dropout_rate=0.0),",
        "task='tasks.text:language_model', cache='', layout=layouts.LM()",
    ),
    "deberta": (
        "kept_bert",
        "from t5x_lite.models.deberta import DebertaConfig",
        "model=DebertaConfig(vocab_size=48, d_model=8, d_ff=12, num_heads=2, num_layers=1, "
        "max_positions=32, position_buckets=8, token_types=2, enhanced_mask_decoder=True),",
        "pack=True",
    ),
    "electra": _objective(
        "electra",
        f"Electra(generator=base.model.replace(embedding_size=8, d_model=4), {_MASKS})",
    ),
    "retromae": _objective("retromae", f"RetroMAE({_MASKS}, bag_of_words=0.2, mask_pool=4)"),
    "condenser": _objective("condenser", f"Condenser({_MASKS}, skip_from=0, head_layers=1)"),
    "cocondenser": _objective(
        "cocondenser",
        f"CoCondenser({_MASKS}, skip_from=0, head_layers=1)",
        "task='tasks.encoder:jsonl_spans', cache='', directory='data/spans', "
        "layout=layouts.Spans()",
    ),
    "contrastive": _objective(
        "contrastive",
        "Contrastive(pooling='mean', projection=4, towers='two')",
        _PAIRS.format(layout="Groups(negatives=1)"),
    ),
    "distill": _objective(
        "distill", "Distill()", _PAIRS.format(layout="Groups(negatives=1, teacher=True)")
    ),
    "cosine": _objective(
        "graded", "CosineRegression()", _PAIRS.format(layout="Groups(negatives=0, teacher=True)")
    ),
    "triplets": _objective("graded", "Triplets()", _PAIRS.format(layout="Groups(negatives=1)")),
    "m3": _objective(
        "m3",
        "M3(specials=(0, 1, 2, 3), vector_size=4)",
        _PAIRS.format(layout="Groups(negatives=1)"),
    ),
    "ranker": _objective(
        "ranker",
        "Ranker()",
        _PAIRS.format(layout="Ranked(negatives=1)") + ", inputs_length=12, targets_length=28",
    ),
    "classify": _objective("classify", "Classify(num_classes=2)", _GLUE),
    "spans": _objective(
        "spans",
        "Spans()",
        "task='tasks.squad:squad', cache='', directory='data/squad', layout=layouts.Labelled()",
    ),
    "choose": _objective(
        "choose",
        "Choose()",
        "task='tasks.choices:jsonl', cache='', directory='data/choices', layout=layouts.Choices()",
    ),
    "tag_tokens": _objective(
        "tag_tokens",
        "TagTokens(num_classes=2)",
        "task='tasks.tokens:jsonl', cache='', directory='data/tokens', layout=layouts.Tokens()",
    ),
    "task_heads": _objective(
        "task_heads",
        "TaskHeads(tasks=('sst2=2', 'squad=span'))",
        "task='', cache=('caches/sst2', 'caches/squad'), layout=layouts.Labelled(), "
        "adapter_of=('sst2=0', 'squad=1')",
    ),
    "refreshed": _objective(
        "contrastive",
        "Contrastive()",
        "task='tasks.pairs:jsonl', directory='data/pairs', cache='caches/pairs', "
        "layout=layouts.Groups(negatives=1), "
        "refresh=Refresh(period=2, top=3, directory='work/refreshed/refresh')",
    ),
    "custom": (
        "kept_bert", "from kept_objective import Weighted", "objective=Weighted(num_classes=2),",
        _GLUE,
    ),
    "all_heads": (
        "kept_bert",
        "from t5x_lite.data.config import Bucketed\n"
        "from t5x_lite.models.heads import Choice\n"
        "from t5x_lite.models.vector_heads import Dense, Prompt\n"
        "from t5x_lite.models.vector_heads import Lexical\n"
        "from t5x_lite.models.vector_heads import MultiVector\n"
        "from t5x_lite.models.heads import Rtd\n"
        "from t5x_lite.models.heads import Span\n"
        "from t5x_lite.models.heads import Token\n"
        "from t5x_lite.optim.config import Constant",
        "heads=(\n"
        "        Choice(), Lexical(), MultiVector(size=4), Rtd(), Span(), Token(num_classes=2),\n"
        "        Dense(pooling='cls', prompts=(Prompt(name='query', text='the '),)),\n"
        "    ),\n"
        "    optimizer=dataclasses.replace(base.optimizer, schedule=Constant(value=1e-3)),",
        "pack=False, batches=Bucketed({24: 4})",
    ),
}  # fmt: skip
"""Run -> base config, lines of imports, changes of the experiment, and changes of its data."""

MODULES = (
    "lora(r=2)", "ia3()", "seq_bn(reduction=4)", "sparse(density=0.1)", "fastfood(d=8)",
    "prefix(length=2, hidden=4)", "bitfit()", "copy('.*/mlp/.*')", "experts(num=2)",
    "compacter(reduction=2)", "heads()", "params('.*/mlp/.*')", "layers(last=1)",
    "inv()", "diff()", "supermask()", "movement()", "prune()", "unipelt()", "norms()",
    "par_bn(reduction=4)", "double_seq_bn(reduction=4)", "compacter_plus_plus(reduction=2)",
    "seq_bn_inv(reduction=4)", "mam()", "threshold()", "said(d=24)",
)  # fmt: skip
"""Methods on the BERT."""
T5_MODULES = ("t5_adapter(d=4)", "prompt(length=2)", "prefix(length=2, hidden=4)", "lora(r=2)")


def _method(line: str) -> str:
    return line.partition("(")[0]


def commands() -> list[str]:
    """All that is run to make the archive, in its order, but the killed jobs."""
    train = "train configs/kept_{}.py"
    add = "--steps 2 --init {} --workdir work/{} --adapters.add"
    vectors = "embed --checkpoint work/mlm --input data/passages.jsonl"
    lines = [
        "vocab --input data/text/documents.txt --output pieces --size 120",
        "cache configs/kept_t5.py --output caches/t5 --data.cache ''",
        "cache configs/kept_t5.py --output caches/t5_baked --data.cache '' --bake",
        "cache configs/kept_t5_table.py --output caches/stars",
        "cache configs/kept_bert.py --output caches/encoder --data.cache ''",
        "cache configs/kept_classify.py --output caches/sst2 --splits train validation",
        "cache configs/kept_spans.py --output caches/squad",
        "cache configs/kept_refreshed.py --output caches/pairs --data.cache ''",
        "cache configs/kept_t5.py --output caches/t5_sharded --data.cache ''",
        train.format("t5"),
        train.format("bert"),
        *(train.format(name) for name in DERIVED if name != "refreshed"),
        "refresh work/refreshed --passages data/passages.jsonl",
        "finetune --init work/mlm --table data/table --inputs {text} --targets {label} "
        "--workdir work/table --steps 2 --data.batch-size 4",
        "export hf work/mlm exported/mlm",
        "import hf exported/mlm work/imported",
        "export hf work/electra exported/electra",
        "import hf exported/electra work/imported_electra",
        *(
            f"{train.format('classify')} {add.format('work/mlm', _method(line))} "
            f"{shlex.quote('m = ' + line)}"
            for line in MODULES
        ),
        *(
            f"{train.format('t5')} --data.pack False "
            f"{add.format('work/t5', 't5_' + _method(line))} {shlex.quote('m = ' + line)}"
            for line in T5_MODULES
        ),
        f"{train.format('task_heads')} {add.format('work/mlm', 'hyper')} "
        "'m = hyper(tasks=2, reduction=4, embedding=4, hidden=4)' "
        "--adapters.use 'MultiTask(Task(m, of=0), Task(m, of=1))'",
        f"{train.format('classify')} --steps 2 --init work/mlm --workdir work/fused "
        "--adapters.load a=work/seq_bn b=work/par_bn --adapters.use 'Fuse(a, b)' "
        "--adapters.train fusion head",
        f"{train.format('classify')} --steps 2 --init work/mlm --workdir work/routed "
        "--adapters.add 'a = lora(r=2)' 'b = lora(r=2)' --adapters.use 'Route(a, b)'",
        "export adapter work/lora exported/lora",
        "import adapter exported/lora work/imported_lora --base work/mlm",
        "compose 'a + materialise(b)' deltas/sum --delta a=work/lora b=work/ia3",
        "compose 'ties(a, b, density=0.5)' deltas/ties --delta a=work/lora b=work/sparse",
        "compose 0.5*a deltas/half --delta a=work/fastfood",
        "merge deltas/sum work/merged",
        "fisher work/classify deltas/fisher --examples 8",
        "heads work/classify deltas/heads --examples 8 --keep 0.5",
        "extend work/mlm work/extended --positions 40",
        f"{vectors} --output vectors/passages.npy",
        f"{vectors} --output vectors/passages.parquet",
        f"{vectors} --output vectors/part-1.npy --part 1/2 --batch-size 1",
        f"{vectors} --output vectors/part-2.npy --part 2/2 --batch-size 1",
        "embed --checkpoint work/mlm --input data/queries.jsonl --output vectors/queries.npy",
        *(
            f"embed --checkpoint work/m3 --input data/{name}.jsonl --output vectors/m3_{name} "
            f"--heads dense lexical multi_vector --vector-numbers {numbers}"
            for name, numbers in (("passages", "int8"), ("queries", "float16"))
        ),
        *(
            f"index build --vectors vectors/passages.npy --ids data/passages.jsonl "
            f"--output indexes/{name} --kind {kind}"
            for name, kind in (("flat", "Flat"), ("ivf", "IVF4,Flat"), ("hnsw", "HNSW4,Flat"))
        ),
        "bm25 build --input data/passages.jsonl --output indexes/bm25",
        "bm25 build --input data/passages.jsonl --output indexes/bm25_words --analyzer whitespace",
        "bm25 search --index indexes/bm25 --queries data/queries.jsonl --output runs/bm25.trec",
        "hybrid --corpus vectors/m3_passages --queries vectors/m3_queries --output runs/m3",
        "search --vectors vectors/passages.npy --ids data/passages.jsonl --queries "
        "vectors/queries.npy --query-ids data/queries.jsonl --output runs/exact.jsonl",
    ]
    return lines


JOBS = {
    "cache": "cache configs/kept_t5.py --data.cache '' --output jobs/cache/out",
    "c4": "c4 --input data/crawl --output jobs/c4/out --bad-words data/bad.txt --workers 1 "
    "--num-shards 2",
    "embed": "embed --checkpoint work/mlm --input data/passages.jsonl --output jobs/embed/out.npy",
    "search": "search --vectors vectors/many.npy --queries vectors/few.npy --depth 10 "
    "--output jobs/search/out.trec",
    "index": "index build --vectors vectors/many.npy --output jobs/index/out --kind IVF8,Flat",
    "bm25_build": "bm25 build --input data/passages.jsonl --output jobs/bm25_build/out",
    "bm25_search": "bm25 search --index indexes/bm25 --queries data/many.jsonl "
    "--output jobs/bm25_search/out.trec --depth 5",
    "predict": "predict --checkpoint work/t5_table --input data/lines.jsonl "
    "--output jobs/predict/out.jsonl --batch-size 1 --max-decode-length 4",
    "answer": "predict --checkpoint work/classify --input data/lines.jsonl "
    "--output jobs/answer/out.jsonl --batch-size 1 --probabilities",
    "score": "score --checkpoint work/t5_table --input data/lines.jsonl "
    "--output jobs/score/out.jsonl --batch-size 1",
    "rerank": "rerank --checkpoint work/ranker --input runs/many.trec --queries data/many.jsonl "
    "--passages data/passages.jsonl --depth 2 --output jobs/rerank/out.trec",
    "score_pairs": "score-pairs --checkpoint work/ranker --input data/many_pairs.jsonl "
    "--output jobs/score_pairs/out.jsonl",
    "train": "train configs/kept_t5.py --workdir jobs/train/out --steps 6 --checkpoints.period 2",
}  # fmt: skip
"""Resumable job -> its command; its files are in jobs/NAME."""

_KILLED = """
import os, sys
left, counted = int(sys.argv[1]), 0

def counting(call):
    def wrapped(*args, **kwargs):
        global counted
        found = call(*args, **kwargs)
        counted += 1
        if counted == left:
            os.kill(os.getpid(), 9)
        return found
    return wrapped

os.fsync, os.replace, os.rename = map(counting, (os.fsync, os.replace, os.rename))
import t5x_lite.data.cache.making as making
from t5x_lite.cli import main
if sys.argv[2] == "search":
    from t5x_lite.retrieval import exact
    exact.SAVE_SECONDS, exact._BLOCK_BYTES = 0.0, 1
if sys.argv[2] == "bm25":
    from t5x_lite.retrieval import bm25
    bm25.BLOCK_POSTINGS = 100
if sys.argv[2:4] == ["cache", "sharded"]:
    making.write_cache.__kwdefaults__["shard_bytes"] = 2000
    del sys.argv[3]
code = main(sys.argv[2:])
print(counted, file=sys.stderr)
sys.exit(code)
"""
"""The command line, which kills itself after so many files were put on the disk or renamed."""


def write_project() -> None:
    """The files of the user in the current directory."""
    write = _write_lines
    rng = random.Random(0)

    def sentence(least: int = 4, most: int = 9) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most))) + " ."

    files = {
        "configs/kept_t5.py": _T5,
        "configs/kept_bert.py": _BERT,
        "configs/kept_old_imports.py": _OLD_IMPORTS,
        "kept_tasks.py": _TASKS,
        "kept_objective.py": _OBJECTIVE,
    }
    for name, (base, imports, changes, data) in DERIVED.items():
        if name == "refreshed":
            imports += "\nfrom t5x_lite.data.config import Refresh"
            changes += "\n    checkpoints=dataclasses.replace(base.checkpoints, period=2), steps=6,"
        files[f"configs/kept_{name}.py"] = _DERIVED.format(
            name=name, base=base, imports=imports, changes=changes, data=data
        )
    for name, text in files.items():
        write(name, [text.rstrip("\n")])
    documents = [[sentence() for _ in range(rng.randint(1, 4))] for _ in range(240)]
    write("data/text/documents.txt", [" ".join(document) for document in documents])
    write("data/paragraphs/documents.txt", ["\n".join(document) + "\n" for document in documents])
    spans = [{"spans": [sentence(17, 20) for _ in range(3)]} for _ in range(40)]
    _write_objects("data/spans/spans.jsonl", spans)
    write("vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *sorted(set(WORDS))])
    for split, rows in {"train": 64, "dev": 8}.items():
        labelled = [f"{sentence()}\t{rng.randint(0, 1)}" for _ in range(rows)]
        write(f"data/glue/SST-2/{split}.tsv", ["sentence\tlabel", *labelled])
        contexts = [sentence(6, 9) for _ in range(rows)]
        paragraphs = [question(context, f"{split}{i}", rng) for i, context in enumerate(contexts)]
        squad = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
        write(f"data/squad/{split}-v1.1.json", [json.dumps(squad)])
    for split, rows in {"train": 64, "validation": 8}.items():
        table = [{"text": sentence(), "label": rng.randint(0, 1)} for _ in range(rows)]
        _write_objects(f"data/table/{split}.jsonl", table)
        choices = [
            {"question": sentence(), "choices": [sentence(), sentence()], "label": i % 2}
            for i in range(rows)
        ]
        _write_objects(f"data/choices/{split}.jsonl", choices)
        tagged = [
            {"tokens": words, "tags": [rng.choice(("O", "B-X")) for _ in words]}
            for words in (sentence().split() for _ in range(rows))
        ]
        _write_objects(f"data/tokens/{split}.jsonl", tagged)
    pairs = [
        {"query": sentence(), "pos": [sentence()], "neg": [sentence()],
         "pos_scores": [round(rng.random(), 2)], "neg_scores": [-round(rng.random(), 2)]}
        for _ in range(48)
    ]  # fmt: skip
    _write_objects("data/pairs/pairs.jsonl", pairs)
    _write_objects("data/many_pairs.jsonl", (pairs * 4)[:160])
    passages = [{"_id": f"p{i}", "text": sentence(6, 12)} for i in range(40)]
    _write_objects("data/passages.jsonl", passages)
    queries = [{"_id": f"q{i}", "text": sentence()} for i in range(160)]
    _write_objects("data/many.jsonl", queries)
    _write_objects("data/queries.jsonl", queries[:4])
    run = [f"q{i} Q0 p{(7 * i + k) % 40} {k + 1} {3 - k}.0 t" for i in range(160) for k in range(2)]
    write("runs/many.trec", run)
    asked = [{"inputs": sentence(), "targets": rng.choice(("bad", "good"))} for _ in range(100)]
    _write_objects("data/lines.jsonl", asked)
    write("data/bad.txt", ["badword"])
    _write_crawl(rng)
    numbers = np.random.default_rng(0)
    pathlib.Path("vectors").mkdir()
    np.save("vectors/many.npy", numbers.normal(size=(2500, 4)).astype(np.float16))
    np.save("vectors/few.npy", numbers.normal(size=(6, 4)).astype(np.float16))


def _write_lines(path: str, lines: list[str]) -> None:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def _write_objects(path: str, objects: list[Any]) -> None:
    _write_lines(path, [json.dumps(one) for one in objects])


def _write_crawl(rng: random.Random) -> None:
    """Three WET files of English."""
    from pydoc_data.topics import topics

    from tests.c4.wet_files import info_record, members, wet_record

    text = " ".join(" ".join(topics[name].split()) for name in ("assert", "class", "import"))
    sentences = [f"{one.strip()}." for one in text.split(". ") if 40 < len(one) < 200]
    pathlib.Path("data/crawl").mkdir()
    for number in range(3):
        pages = ["\n".join(rng.sample(sentences, 5)) for _ in range(6)]
        records = [
            wet_record(f"https://site{number}.example/{i}", page) for i, page in enumerate(pages)
        ]
        path = pathlib.Path(f"data/crawl/crawl-{number}.warc.wet.gz")
        path.write_bytes(members(info_record(), *records))


def run(line: str) -> str:
    """Runs a command in this process, and returns what it wrote on standard error.

    Raises:
      RuntimeError: it failed.
    """
    from t5x_lite.cli import main

    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = main(shlex.split(line))
    if code:
        raise RuntimeError(f"{line}: exit code {code}: {told.getvalue()[-3000:]}")
    return told.getvalue()


def kill(name: str) -> None:
    """Runs a job's command in a process of its own that is killed halfway."""
    place, count = pathlib.Path("jobs", name), KILLED_AT[name]
    while count:
        place.mkdir(parents=True)
        done = _killed(count, shlex.split(JOBS[name]))
        if done.returncode == -9:
            break
        count //= 2  # it had ended before
        shutil.rmtree(place)
    print(name, count, *sorted(path.relative_to(place).as_posix() for path in place.rglob("*")))


KILLED_AT = {
    "cache": 2, "c4": 24, "embed": 1, "search": 4, "index": 1, "bm25_build": 8, "bm25_search": 4,
    "predict": 5, "answer": 5, "score": 5, "rerank": 8, "score_pairs": 8, "train": 64,
}  # fmt: skip
"""Job -> the file that is put on the disk or renamed last."""


def _killed(count: int, line: list[str]) -> subprocess.CompletedProcess[str]:
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(count), *line],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, -9):
        raise RuntimeError(f"{line}: {done.stderr[-3000:]}")
    return done


def archive(_: list[str]) -> None:
    """Writes the project, runs all commands, and packs everything."""
    with tempfile.TemporaryDirectory() as directory, inside(directory):
        fill()
        pack(directory)


def fill() -> None:
    """The project with all that its commands write, in the current directory."""
    write_project()
    for line in commands():
        print(line, flush=True)
        execute(line)
    _without_times()
    for name in JOBS:
        kill(name)
        _without_times()


def execute(line: str) -> None:
    """Runs one of the commands."""
    words = shlex.split(line)
    if "caches/t5_sharded" in words:
        _killed(0, ["cache", "sharded", *words[1:]])
    elif words[0] == "refresh":  # next to the training that needs it
        options = ["configs/kept_refreshed.py", "--steps", "5"]
        with subprocess.Popen([sys.executable, "-m", "t5x_lite", "train", *options]) as training:
            while not pathlib.Path(words[1], "config.json").exists():
                time.sleep(0.1)
            run(line)
        if training.returncode:
            raise RuntimeError(f"train {options}: exit code {training.returncode}")
    else:
        run(line)


def _without_times() -> None:
    """The time 0 of all files, which killed jobs compare."""
    for path in [pathlib.Path(), *pathlib.Path().rglob("*")]:
        os.utime(path, (0, 0))


def pack(directory: str) -> None:
    """The archive of a directory."""
    for pattern in ("tensorboard", "samples.jsonl", "report.html"):
        for path in pathlib.Path(directory, "work").glob(f"*/{pattern}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _replace_root(pathlib.Path(directory), os.path.realpath(directory), ROOT)
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with inside(directory), tarfile.open(ARCHIVE, "w:xz", preset=9) as packed:
        for path in sorted(pathlib.Path().rglob("*")):
            packed.add(path, recursive=False, filter=anonymous)


def unpack(directory: str | os.PathLike[str]) -> None:
    """The archive's files below a directory, as if their commands had been given there."""
    with tarfile.open(ARCHIVE) as packed:
        # Python 3.11.4 is the first with filters.
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        packed.extractall(directory, **options)
    _replace_root(pathlib.Path(directory), ROOT, os.path.realpath(directory))


def _replace_root(directory: pathlib.Path, old: str, new: str) -> None:
    """Another directory in the files of killed jobs that name it; times stay."""
    for path in (directory / "jobs").rglob("*"):
        if path.suffix == ".npz":
            with np.load(path) as opened:
                arrays = dict(opened)
            named = {key: value for key, value in arrays.items() if value.dtype.kind == "U"}
            if any(old in str(value) for value in named.values()):
                changed = {key: np.array(str(v).replace(old, new)) for key, v in named.items()}
                np.savez(path, allow_pickle=False, **(arrays | changed))
        elif path.suffix == ".json" and old in path.read_text():
            path.write_text(path.read_text().replace(old, new))
        else:
            continue
        os.utime(path, (0, 0))


def runs() -> list[str]:
    """The work directories and deltas of the archive, which is the current directory."""
    works = sorted(path.name for path in pathlib.Path("work").iterdir())
    return [*works, *(f"deltas/{name}" for name in DELTAS)]


DELTAS = ("half", "sum", "ties")
"""Those that `merge` makes a checkpoint of."""


def answered(name: str) -> dict[str, Any]:
    """What a checkpoint answers: log-likelihoods and texts, or vectors and answers of heads."""
    import t5x_lite
    from t5x_lite.inference.answers import answering_heads, kind_of

    use = {"hyper": "Task(m, of=1)"}.get(name)
    place = f"work/{name}"
    if name.startswith("deltas/"):
        place = f"merged/{name}"
        run(f"merge {name} {place}")
    model = t5x_lite.load(place, use=use, trust_project=True)
    experiment = model._model.members[0].experiment
    if type(experiment.model).__name__ in ("T5Config", "LMConfig"):
        inputs = ["", ""] if name == "lm" else TEXTS
        pairs = [(text, "a lamp burned") for text in inputs]
        return {
            "log_likelihood": model.score(pairs),
            "text": model.generate(inputs, max_decode_length=4),
        }
    found: dict[str, Any] = {"vectors": model.encode(TEXTS).tolist()}
    for head, config in answering_heads(experiment).items():
        records = {
            "choice": [{"inputs": text, "choices": ["rain came", "men ."]} for text in TEXTS],
            "span": [{"question": "who spoke", "context": text} for text in TEXTS],
        }.get(kind_of(config), [{"inputs": text} for text in TEXTS])
        found[head] = model.predict(records, head=head)
    return found


CONTINUED = ("mlm", "t5_live", "electra", "task_heads", "refreshed", "custom", "lora")
"""Runs that are trained on: what differs in data, phases of a step and modules."""


def continued(name: str, *stops: int) -> list[float]:
    """The losses of a run of the archive that trains on to step LAST.

    Args:
      name: of the work directory.
      *stops: steps at which the command ends and is given again.
    """
    last = {"refreshed": 6}.get(name, LAST)
    flags = "--trust-project" if name == "custom" else ""
    for steps in (*stops, last):
        run(f"train work/{name}/config.json {flags} --workdir work/{name} --steps {steps}")
    lines = pathlib.Path("work", name, "metrics.jsonl").read_text().splitlines()
    losses = {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}
    return [losses[step] for step in range(1, last + 1)]


def _rounded(found: Any) -> Any:
    """With six digits of each number."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_rounded(value) for value in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


def record(names: list[str]) -> None:
    """Writes the records of the runs that are named, or of all."""
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        unpack(directory)
        with inside(directory):
            for name in names or runs():
                records[name] = answered(name)
                if name in CONTINUED:
                    records[name]["losses"] = continued(name)
    records = {name: _rounded(found) for name, found in sorted(records.items())}
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in records.items()]
    RECORDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    {"archive": archive, "record": record}[sys.argv[1]](sys.argv[2:])
