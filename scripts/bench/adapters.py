"""Train steps of modules, beside their peers and our full fine-tuning in the same run.

    python scripts/bench/adapters.py --peer-python VENV/bin/python [--rows t5-lora-f32 ...]
    python scripts/bench/adapters.py --shapes tiny --rounds 2 --rows t5-lora-f32 bert-lora-f32

T5 1.1 small at 8 rows of 512 / 114 tokens and a BERT-base at 16 rows of 128, LoRA (r 8, query and
value) and a bottleneck (seq_bn, reduction 16), in float32 and bfloat16. A row is a model, a method
and a dtype; its sides run in processes of their own, which are told when to run, so that rounds are
interleaved:

    ours     t5x_lite: the module and, of BERT, the classifier train
    full     t5x_lite: everything trains
    peer     LoRA: peft; bottleneck: the library adapters, which needs an environment of its own
             (--peer-python); both on transformers' model, sdpa where it has it

AdamW at a constant rate, no dropout, the same rows of random tokens on all sides. In bfloat16 the
frozen base is stored so, and modules are float32; full fine-tuning has float32 parameters and
computes in bfloat16. The peers compute under autocast. Torch flushes denormals.

One JSON line for each side of a row: the median step and its spread, peak memory of the process
(and what it was before the model; XLA may hold the temporaries of two steps, or not) and of our
compiled step, trained parameters, bytes of theta and its optimizer state, and
the module's file. With --output FILE lines are appended, and rows that it has are passed over.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RATE = 5e-4
RANK, REDUCTION = 8, 16
MODELS, METHODS, DTYPES = ("t5", "bert"), ("lora", "seq_bn"), ("f32", "bf16")
ROWS = tuple(f"{m}-{method}-{dtype}" for m in MODELS for method in METHODS for dtype in DTYPES)
SIDES = ("ours", "full", "peer")
SHAPES: dict[str, dict[str, dict[str, int]]] = {
    "full": {
        "t5": {"d_model": 512, "d_ff": 1024, "heads": 6, "layers": 8, "d_kv": 64,
               "vocabulary": 32128, "rows": 8, "inputs": 512, "targets": 114},
        "bert": {"d_model": 768, "d_ff": 3072, "heads": 12, "layers": 12,
                 "vocabulary": 30522, "rows": 16, "inputs": 128},
    },
    "tiny": {
        "t5": {"d_model": 32, "d_ff": 48, "heads": 2, "layers": 2, "d_kv": 8,
               "vocabulary": 100, "rows": 2, "inputs": 16, "targets": 8},
        "bert": {"d_model": 32, "d_ff": 64, "heads": 2, "layers": 2,
                 "vocabulary": 100, "rows": 2, "inputs": 16},
    },
}  # fmt: skip


class Trainer(NamedTuple):
    """What a side does.

    Attributes:
      step: trains on a batch, and gives the loss.
      trained: number of trained parameters.
      state_bytes: bytes of these and of their optimizer state, after a step.
      file_bytes: bytes of the module's files; 0 of full fine-tuning.
      program_bytes: what the compiled step needs: its state, batch and temporaries; 0 where nothing
        is compiled.
    """

    step: Callable[[dict[str, np.ndarray]], float]
    trained: int
    state_bytes: Callable[[], int]
    file_bytes: Callable[[], int]
    program_bytes: Callable[[], int]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--shapes", default="full", choices=SHAPES)
    parser.add_argument("--peer-python", default="", help="of the environment of adapters 1.3")
    parser.add_argument("--threads", default="all", help="1, 2, ... or all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="", help="a file that gets the lines, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


# What a child does.


def batch_of(work: dict) -> dict[str, np.ndarray]:
    """The batch, the same on all sides."""
    shape, random = work["sizes"], np.random.default_rng(0)
    lengths = {name: shape[name] for name in ("inputs", "targets") if name in shape}
    batch = {
        name: random.integers(2, shape["vocabulary"], (shape["rows"], length)).astype(np.int32)
        for name, length in lengths.items()
    }
    return batch | {"labels": np.arange(shape["rows"], dtype=np.int32) % 2}


def our_parts(work: dict) -> tuple[Any, Any]:
    """The config of our model, and its objective."""
    from t5x_lite.models.encoder import BertConfig
    from t5x_lite.models.t5 import T5Config
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.objectives.task_heads import Classify

    shape = work["sizes"]
    sizes = {"vocab_size": shape["vocabulary"], "num_heads": shape["heads"], "dropout_rate": 0.0}
    sizes |= {name: shape[name] for name in ("d_model", "d_ff")}
    if work["model"] == "t5":
        layers = {f"num_{stack}_layers": shape["layers"] for stack in ("encoder", "decoder")}
        return T5Config(**sizes, **layers, d_kv=shape["d_kv"], unroll=True), Seq2Seq(z_loss=0.0)
    model = BertConfig(
        **sizes,
        num_layers=shape["layers"],
        max_positions=shape["inputs"],
        attention_dropout_rate=0.0,
        unroll=True,
    )
    return model, Classify(num_classes=2)


def our_rows(work: dict, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch under our names."""
    if work["model"] == "bert":
        return {
            "encoder_input_tokens": batch["inputs"],
            "encoder_segment_ids": np.ones_like(batch["inputs"]),
            "labels": np.stack([batch["labels"] + 1, np.zeros_like(batch["labels"])], axis=1),
        }
    return {
        "encoder_input_tokens": batch["inputs"],
        "decoder_input_tokens": np.pad(batch["targets"][:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": batch["targets"],
        "decoder_loss_weights": np.ones_like(batch["targets"]),
    }


def our_learner(work: dict) -> Any:
    """Our learner of a row's side."""
    from t5x_lite.adapters.bottleneck import seq_bn
    from t5x_lite.adapters.lora import Lora
    from t5x_lite.objectives.learner import Learner
    from t5x_lite.optim.config import AdamW, Constant

    model, objective = our_parts(work)
    modules = {"lora": Lora(rank=RANK), "seq_bn": seq_bn(reduction=REDUCTION)}
    return Learner.of(
        model,
        objective,
        adapters=() if work["side"] == "full" else (modules[work["method"]],),
        optimizer=AdamW(schedule=Constant(value=RATE)),
        dtype="bfloat16" if work["dtype"] == "bf16" else "float32",
    )


def our_trainer(work: dict) -> Trainer:
    import jax
    import jax.numpy as jnp

    from t5x_lite.checkpoints.items import write_params
    from t5x_lite.core import trees
    from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
    from t5x_lite.optim.partial import joint_optimizer
    from t5x_lite.train.step import TrainState, make_train_step, state_shardings

    learner = our_learner(work)
    updates = learner.updates()
    optimizer = joint_optimizer(updates)
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    halved = work["dtype"] == "bf16" and work["side"] == "ours"

    def init(key: Any) -> TrainState:
        flat = trees.flatten(learner.init(key))
        if halved:
            frozen = {p: a for p, a in flat.items() if learner.holds_still(p)}
            flat |= {path: array.astype(jnp.bfloat16) for path, array in frozen.items()}
        params = trees.unflatten(flat)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    kept = [jax.jit(init, out_shardings=layout)(jax.random.key(0))]
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    compiled: list[Any] = []

    def run(batch: dict[str, np.ndarray]) -> float:
        with jax.set_mesh(mesh):
            placed = put_batch(our_rows(work, batch), mesh)
            if not compiled:
                compiled.append(step.lower(kept[0], placed).compile())
            kept[0], metrics = compiled[0](kept[0], placed)
        jax.block_until_ready(kept[0])
        return float(metrics["loss"])

    def trained() -> dict[str, Any]:
        flat = trees.flatten(kept[0].params)
        return {path: array for path, array in flat.items() if learner.trains(path)}

    def state_bytes() -> int:
        return sum(a.nbytes for a in (*trained().values(), *jax.tree.leaves(kept[0].optimizer)))

    def file_bytes() -> int:
        if work["side"] == "full":
            return 0
        arrays = {path: np.asarray(array) for path, array in trained().items()}
        with tempfile.TemporaryDirectory() as directory:
            write_params(
                Path(directory) / "params",
                {p: trees.LazyArray(a.shape, a.dtype, lambda a=a: a) for p, a in arrays.items()},
            )
            return size_of(directory)

    def program_bytes() -> int:
        needs = compiled[0].memory_analysis()
        new = needs.output_size_in_bytes - needs.alias_size_in_bytes
        return needs.argument_size_in_bytes + needs.temp_size_in_bytes + new

    trained_numbers = sum(a.size for a in trained().values())
    return Trainer(run, trained_numbers, state_bytes, file_bytes, program_bytes)


def their_model(work: dict) -> Any:
    """transformers' model."""
    import transformers

    shape = work["sizes"]
    if work["model"] == "t5":
        config = transformers.T5Config(
            vocab_size=shape["vocabulary"],
            d_model=shape["d_model"],
            d_kv=shape["d_kv"],
            d_ff=shape["d_ff"],
            num_heads=shape["heads"],
            num_layers=shape["layers"],
            num_decoder_layers=shape["layers"],
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            decoder_start_token_id=0,
            dropout_rate=0.0,
            use_cache=False,
        )
        kind = transformers.T5ForConditionalGeneration
    else:
        config = transformers.BertConfig(
            vocab_size=shape["vocabulary"],
            hidden_size=shape["d_model"],
            intermediate_size=shape["d_ff"],
            num_attention_heads=shape["heads"],
            num_hidden_layers=shape["layers"],
            max_position_embeddings=shape["inputs"],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2,
        )
        kind = transformers.BertForSequenceClassification
    if getattr(kind, "_supports_sdpa", False):
        config._attn_implementation = "sdpa"
    return kind(config)


def their_trainer(work: dict) -> Trainer:
    import torch

    half = work["dtype"] == "bf16"
    model = their_model(work)
    model = model.to(torch.bfloat16) if half else model
    if work["method"] == "lora":
        import peft

        said: dict[str, Any] = {"task_type": "SEQ_2_SEQ_LM"}
        if work["model"] == "bert":  # whose head is the pooler, too, here
            said = {"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]}
        model = peft.get_peft_model(model, peft.LoraConfig(**said, r=RANK, lora_alpha=8))
    else:
        sys.path.pop(0)  # where this file has the library's name
        import adapters

        adapters.init(model)
        model.add_adapter("x", config=adapters.SeqBnConfig(reduction_factor=REDUCTION))
        model.train_adapter("x")
        model.set_active_adapters("x")
        for name, parameter in model.named_parameters():
            if "pooler." in name or "classifier." in name:
                parameter.requires_grad = True
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.data = parameter.data.float()
    optimizer = torch.optim.AdamW(trained, lr=RATE)

    def run(batch: dict[str, np.ndarray]) -> float:
        inputs = torch.from_numpy(batch["inputs"]).long()
        labels = torch.from_numpy(batch["targets" if work["model"] == "t5" else "labels"]).long()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            given = {"attention_mask": torch.ones_like(inputs), "labels": labels}
            loss = model(input_ids=inputs, **given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def state_bytes() -> int:
        tensors = [*trained]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if hasattr(value, "element_size")]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def file_bytes() -> int:
        with tempfile.TemporaryDirectory() as directory:
            if work["method"] == "lora":
                model.save_pretrained(directory)
            else:
                model.save_adapter(directory, "x")
            return size_of(directory)

    return Trainer(run, sum(p.numel() for p in trained), state_bytes, file_bytes, lambda: 0)


def size_of(directory: str) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


def mebibytes() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(work: dict) -> None:
    """Answers the parent's lines, until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    os.sched_setaffinity(0, work["cores"])
    if work["side"] == "peer":
        import torch

        torch.set_num_threads(len(work["cores"]))
        torch.set_flush_denormal(True)
        torch.manual_seed(0)
        before = mebibytes()
        trainer = their_trainer(work)
        run = trainer.step
    else:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax

        from t5x_lite.core.accelerators import keep_freed_memory
        from t5x_lite.core.devices import within_memory

        keep_freed_memory()
        jax.devices()
        before = mebibytes()
        trainer = our_trainer(work)
        run = within_memory(trainer.step)
    batch = batch_of(work)
    for line in sys.stdin:
        start, asked = time.perf_counter(), json.loads(line)["do"]
        if asked == "first":
            losses = [run(batch), run(batch)]
            answer = {"losses": losses, "trained": trainer.trained}
        elif asked == "time":
            run(batch)
            answer = {"seconds": time.perf_counter() - start, "peak_mib": mebibytes()}
        else:
            answer = {"state_bytes": trainer.state_bytes(), "file_bytes": trainer.file_bytes()}
            answer |= {"program_bytes": trainer.program_bytes()}
        print(json.dumps({**answer, "before_mib": before}), file=answers, flush=True)


# What the parent does.


class Side:
    """A child process of one side."""

    def __init__(self, work: dict, *, python: str):
        self.process = subprocess.Popen(
            [python, __file__, "--child", json.dumps(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> dict:
        self.begin(what)
        return self.answer()

    def begin(self, what: str) -> None:
        """Has the child begin, and does not wait for its answer."""
        assert self.process.stdin is not None
        print(json.dumps({"do": what}), file=self.process.stdin, flush=True)

    def answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with exit code {self.process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def all_at_once(sides: dict[str, Side], what: str) -> dict[str, dict]:
    """Has all sides do what is not timed, compiling above all, beside each other."""
    for side in sides.values():
        side.begin(what)
    return {name: side.answer() for name, side in sides.items()}


def measure(options: argparse.Namespace, row: str, cores: list[int]) -> list[dict]:
    """The results of a row, one for each side."""
    model, method, dtype = row.split("-")
    sizes = SHAPES[options.shapes][model]
    work = {"model": model, "method": method, "dtype": dtype, "sizes": sizes, "cores": cores}
    sides = {}
    for side in options.sides:
        others = side == "peer" and method == "seq_bn"
        if others and not options.peer_python:
            print(f"{row}: no peer without --peer-python", file=sys.stderr)
            continue
        python = options.peer_python if others else sys.executable
        sides[side] = Side({**work, "side": side}, python=python)
    first = all_at_once(sides, "first")
    timed: dict[str, list[dict]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            timed[name].append(side.ask("time"))
    sizes_of = all_at_once(sides, "sizes")
    for side in sides.values():
        side.end()
    medians = {n: statistics.median(a["seconds"] for a in answers) for n, answers in timed.items()}
    return [
        {
            "device": platform.processor() or platform.machine(),
            "threads": len(cores),
            "row": row,
            "side": name,
            "shape": sizes,
            "step_ms": round(1e3 * medians[name], 1),
            "spread_ms": [
                round(1e3 * edge(a["seconds"] for a in answers), 1) for edge in (min, max)
            ],
            **{
                f"over_{other}": round(medians[name] / medians[other], 3)
                for other in medians
                if other != name
            },
            "peak_mib": round(answers[-1]["peak_mib"]),
            "before_mib": round(answers[-1]["before_mib"]),
            "program_mib": round(sizes_of[name]["program_bytes"] / 2**20),
            "trained_parameters": first[name]["trained"],
            "state_bytes": sizes_of[name]["state_bytes"],
            "file_bytes": sizes_of[name]["file_bytes"],
            "losses": [round(loss, 5) for loss in first[name]["losses"]],
        }
        for name, answers in timed.items()
    ]


def main() -> None:
    options = parse()
    if options.child:
        child(json.loads(options.child))
        return
    available = sorted(os.sched_getaffinity(0))
    cores = available[: len(available) if options.threads == "all" else int(options.threads)]
    output = Path(options.output) if options.output else None
    done = set()
    if output is not None and output.is_file():
        done = {json.loads(line)["row"] for line in output.read_text().splitlines()}
    for row in options.rows:
        if row in done:
            continue
        lines = [json.dumps(result) for result in measure(options, row, cores)]
        print("\n".join(lines), flush=True)
        if output is not None:
            with output.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
