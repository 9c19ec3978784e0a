"""Train steps a second of MLM, RetroMAE and ELECTRA, beside the references' code shape in PyTorch.

    python scripts/bench/encoder_step.py [--shape tiny] [--threads 1 all] [--markdown]
    python scripts/bench/encoder_step.py --shape trifle --threads 1 --rounds 2 --steps 2

What the references compute, of transformers' modules in eager mode:

    enhanced   RetroMAE (staoxiao/RetroMAE pretrain/modeling.py): BertForMaskedLM, whose head reads
               ALL positions; one layer with the queries c + p_i and a mask [B, L, L]; the head at
               all positions again
    basic      the paper's other decoder, which that code lacks, in the same shape: one layer over c
               and the masked embeddings, the head at all positions
    rtd        ELECTRA and DeBERTaV3 in one joint step: ElectraForMaskedLM of half the width on the
               tables of ElectraForPreTraining (ES), its head at the masked positions only, as both
               codes have it; a multinomial draw; L_G + 50 L_D
    deberta    DeBERTaV3 in one joint step: DebertaV2ForMaskedLM of half the depth, its head at the
               masked positions only; DebertaV2Model on the generator's table, which gets no
               gradient, plus one of its own (GDES); dense, GELU, norm and one logit
    mlm        masked language modeling: BertForMaskedLM, whose head reads all positions

Both sides: the same sizes, the same rows of random tokens without padding, one word each (whole
words are tokens), AdamW at a constant rate that decays no bias or norm, the gradient clipped at 1.
Weights begin as each library makes them. A NumPy collator makes torch's masks ahead, and its time
does not count (the references' data workers do it); ours are drawn in the step, and count. Torch
flushes denormals.

Each side has a process of its own, told when to run, and rounds are interleaved: ours, eager (as
the references ran), and, where --sides has it, sdpa (torch's scaled_dot_product_attention). A JSON
line for each number of threads, objective and side: steps/s and tokens/s by the median round,
"ours_over_it" (the median over the rounds of its seconds by ours), "first_losses" of the untrained
weights (ln V, and ln 2 of the detection), "compile_seconds" (the first step less a usual
one), peak memory of the process.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from train_step import Side

from t5x_lite import layouts

RATE, CLIP, DECAY = 1e-4, 1.0, 0.01
CLS, SEP, MASK, IGNORED = 101, 102, 103, -100
BATCHES, DETECTION_WEIGHT = 4, 50.0
RATIO = {"retromae": 0.3, "enhanced": 0.5, "basic": 0.7, "rtd": 0.15, "mlm": 0.15}
OBJECTIVES = ("enhanced", "basic", "rtd", "deberta", "mlm")
DETECTING = ("rtd", "deberta")
SIDES = ("ours", "eager", "sdpa")
OURS = ("d_model", "d_ff", "num_heads", "num_layers", "vocab_size")
THEIRS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", OURS[-1])
SHAPES = {
    "trifle": {"sizes": (32, 64, 2, 2, 500), "batch": (2, 32)},
    "tiny": {"sizes": (128, 512, 2, 4, 30522), "batch": (32, 128)},
    "base": {"sizes": (768, 3072, 12, 12, 30522), "batch": (4, 128)},
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--rows", type=int, help="of a batch; default: the shape's")
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=OBJECTIVES)
    parser.add_argument("--sides", nargs="+", default=list(SIDES[:2]), choices=SIDES)
    parser.add_argument("--threads", nargs="+", default=["all"], help="1, 2, ... or all")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--logits-chunk", type=int, default=32, help="RetroMAE's; 0: all at once")
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of each round")
    parser.add_argument("--markdown", action="store_true", help="a table after the JSON lines")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


# What a child does.


def sizes_of(work: dict, names: tuple[str, ...], *, divided: int = 1) -> dict[str, Any]:
    """The model's sizes by name; divided, those of layers that are a part as wide."""
    width, hidden, heads, *rest = SHAPES[work["shape"]]["sizes"]
    parts = (width // divided, hidden // divided, max(1, heads // divided), *rest)
    return dict(zip(names, parts, strict=True))


def batch_of(work: dict) -> tuple[int, int]:
    rows, length = SHAPES[work["shape"]]["batch"]
    return work["rows"] or rows, length


def all_tokens(work: dict) -> np.ndarray:
    """Batches of rows [CLS] words [SEP], the same on all sides."""
    vocabulary, random = SHAPES[work["shape"]]["sizes"][-1], np.random.default_rng(0)
    tokens = random.integers(MASK + 1, vocabulary, (BATCHES, *batch_of(work)))
    tokens[..., 0], tokens[..., -1] = CLS, SEP
    return tokens


def chosen(random: np.random.Generator, shape: tuple[int, ...], ratio: float) -> np.ndarray:
    """Masks over the last axis, of as many tokens as ours: never of its first or last."""
    scores = random.random(shape)
    scores[..., [0, -1]] = 2.0
    order = np.argsort(scores, axis=-1)[..., : max(1, round(ratio * shape[-1]))]
    masks = np.zeros(shape, bool)
    np.put_along_axis(masks, order, True, axis=-1)
    return masks


def collate(objective: str, tokens: np.ndarray, random: np.random.Generator) -> dict:
    """What the references' collator gives: tokens with masks, labels, and who sees what."""
    rows, length = tokens.shape
    fate = random.random(tokens.shape)
    if objective in DETECTING:
        masked = chosen(random, tokens.shape, RATIO["rtd"])
        positions = np.nonzero(masked)[1].reshape(rows, -1)
        share = 0.85 if objective == "rtd" else 1.0
        inputs = np.where(masked & (fate < share), MASK, tokens)
        return {"tokens": tokens, "inputs": inputs, "positions": positions}
    masked = chosen(random, tokens.shape, RATIO["mlm" if objective == "mlm" else "retromae"])
    others = np.roll(tokens, 1, axis=1)  # as random as any
    replaced = np.where(fate < 0.8, MASK, np.where(fate < 0.9, others, tokens))
    inputs, labels = np.where(masked, replaced, tokens), np.where(masked, tokens, IGNORED)
    batch = {"inputs": inputs, "labels": labels}
    if objective == "mlm":
        return batch
    if objective == "basic":
        masked = chosen(random, tokens.shape, RATIO["basic"])
        inputs, labels = np.where(masked, MASK, tokens), np.where(masked, tokens, IGNORED)
        visible = np.ones((rows, 1, length), bool)
    else:
        pool = chosen(random, (rows, min(length, 256), length), RATIO["enhanced"])
        picked = random.integers(0, pool.shape[1], tokens.shape)
        hidden = np.take_along_axis(pool, picked[..., None], axis=1)
        inputs, labels = tokens, np.where(tokens > MASK, tokens, IGNORED)
        visible = ~hidden & ~np.eye(length, dtype=bool)
    return batch | {"decoder_inputs": inputs, "decoder_labels": labels, "visible": visible}


def our_experiment(work: dict) -> Any:
    from t5x_lite.config import Experiment
    from t5x_lite.data.config import Data
    from t5x_lite.models.encoder import BertConfig, EncoderConfig
    from t5x_lite.models.published import deberta_v3_base, deberta_v3_generator
    from t5x_lite.objectives.electra import Electra
    from t5x_lite.objectives.masked_lm import MaskedLM
    from t5x_lite.objectives.retromae import RetroMAE
    from t5x_lite.optim.config import AdamW, Constant

    dropout: Any = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), work["dropout"])
    sizes = sizes_of(work, OURS)
    model: EncoderConfig = BertConfig(**sizes, **dropout, token_types=2, unroll=True)
    masks: dict[str, Any] = {"mask_id": MASK, "ratio": RATIO["retromae"]}
    if work["objective"] == "rtd":
        half = sizes_of(work, OURS, divided=2) | {"embedding_size": model.d_model}
        masks |= {"generator": model.replace(**half), "ratio": RATIO["rtd"]}
        objective: Any = Electra(**masks, discriminator_weight=DETECTION_WEIGHT)
    elif work["objective"] == "deberta":
        model = deberta_v3_base(**sizes, **dropout, unroll=True)
        masks |= {
            "generator": deberta_v3_generator(model, enhanced_mask_decoder=False),
            "ratio": RATIO["rtd"],
        }
        masks |= {"sharing": "gdes", "head": "deberta", "mask_fraction": 1.0}
        objective = Electra(**masks, discriminator_weight=DETECTION_WEIGHT)
    elif work["objective"] == "mlm":
        objective = MaskedLM(mask_id=MASK, ratio=RATIO["mlm"])
    else:
        masks |= {"decoder": work["objective"], "decoder_ratio": RATIO[work["objective"]]}
        objective = RetroMAE(**masks, logits_chunk=work["logits_chunk"] or None)
    return Experiment(
        model=model,
        objective=objective,
        data=Data(
            task="x:y", vocabulary="v", layout=layouts.Encoder(), inputs_length=batch_of(work)[1]
        ),
        optimizer=AdamW(schedule=Constant(value=RATE), clip_norm=CLIP, weight_decay=DECAY),
        steps=1,
        compute_dtype=work["dtype"],
    )


def our_step(work: dict) -> Callable[[], dict[str, float]]:
    """A function that trains on the next batch and gives its losses."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from t5x_lite.core.accelerators import keep_freed_memory

    keep_freed_memory()
    import jax

    from t5x_lite.config.batches import with_choices
    from t5x_lite.core.sharding import MeshConfig, make_mesh, put_batch
    from t5x_lite.inference.loading import learner_of
    from t5x_lite.optim.partial import joint_optimizer
    from t5x_lite.train.step import init_state, make_train_step, state_shardings

    experiment, _ = with_choices(our_experiment(work), "cpu")  # as the command does
    learner = learner_of(experiment)
    mesh, updates = make_mesh(MeshConfig(), devices=jax.devices()[:1]), learner.updates()
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    kept = [init_state(learner.init, joint_optimizer(updates), layout, seed=0)]
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0)
    names = {"encoder": "cross_entropy", "decoder": "decoder_cross_entropy"}
    if work["objective"] in DETECTING:
        names = {"generator": "cross_entropy", "detection": "detection_loss"}
    if work["objective"] == "mlm":
        del names["decoder"]
    place = np.broadcast_to(np.arange(batch_of(work)[1], dtype=np.int32), batch_of(work))
    whole = {"encoder_segment_ids": np.ones_like(place), "encoder_positions": place}
    made = []
    for tokens in all_tokens(work).astype(np.int32):
        words = np.where(tokens > MASK, place, 0)
        made.append({"encoder_input_tokens": tokens, "encoder_word_ids": words, **whole})
    batches = itertools.cycle(made)

    def run() -> dict[str, float]:
        with jax.set_mesh(mesh):
            kept[0], metrics = step(kept[0], put_batch(next(batches), mesh))
        return {name: float(metrics[metric]) for name, metric in names.items()}

    return run


def their_config(work: dict, kind: type, *, divided: int = 1, **changes: Any) -> Any:
    """A config of transformers."""
    sizes, rate = sizes_of(work, THEIRS, divided=divided), work["dropout"]
    dropout = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    config = kind(**sizes, **dropout, **changes)
    config._attn_implementation = work["side"]
    return config


def their_retromae(work: dict) -> tuple[list[Any], Callable[[dict], dict]]:
    """Modules, and the losses of a batch."""
    import torch
    from transformers import BertConfig, BertForMaskedLM
    from transformers.models.bert import modeling_bert as bert

    config = their_config(work, BertConfig)
    model: Any = BertForMaskedLM(config)
    enhanced = work["objective"] == "enhanced"
    attention: Any = bert.BertAttention(config, is_cross_attention=enhanced)
    middle, output = bert.BertIntermediate(config), bert.BertOutput(config)
    for module in (attention, middle, output):
        module.apply(model._init_weights)

    def losses(batch: dict) -> dict:
        tokens = batch["decoder_inputs"]
        rows = {"input_ids": batch["inputs"], "attention_mask": torch.ones_like(tokens)}
        found = model(**rows, labels=batch["labels"], output_hidden_states=True)
        summary, embeddings = found.hidden_states[-1][:, :1], model.bert.embeddings
        keys = torch.cat([summary, embeddings(tokens)[:, 1:]], dim=1)
        mask = (1.0 - batch["visible"][:, None].to(keys.dtype)) * torch.finfo(keys.dtype).min
        if enhanced:
            query = summary + embeddings.position_embeddings(torch.arange(tokens.shape[1]))[None]
            states = attention(query, encoder_hidden_states=keys, encoder_attention_mask=mask)[0]
        else:
            states = attention(keys, mask)[0]
        logits = model.cls(output(middle(states), states))
        labels = batch["decoder_labels"].flatten()
        decoder = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)
        return {"encoder": found.loss, "decoder": decoder}

    return [model, attention, middle, output], losses


def their_mlm(work: dict) -> tuple[list[Any], Callable[[dict], dict]]:
    """As `their_retromae`; the head reads all positions."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    model: Any = BertForMaskedLM(their_config(work, BertConfig))

    def losses(batch: dict) -> dict:
        rows = {"input_ids": batch["inputs"], "attention_mask": torch.ones_like(batch["inputs"])}
        return {"encoder": model(**rows, labels=batch["labels"]).loss}

    return [model], losses


def their_rtd(work: dict) -> tuple[list[Any], Callable[[dict], dict]]:
    """As `their_retromae`."""
    import torch
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    tables = {"embedding_size": sizes_of(work, OURS)["d_model"]}
    small = their_config(work, ElectraConfig, divided=2, **tables)
    generator: Any = ElectraForMaskedLM(small)
    discriminator: Any = ElectraForPreTraining(their_config(work, ElectraConfig, **tables))
    own, shared = generator.electra.embeddings, discriminator.electra.embeddings
    own.word_embeddings = shared.word_embeddings
    own.position_embeddings = shared.position_embeddings
    generator.generator_lm_head.weight = shared.word_embeddings.weight

    def losses(batch: dict) -> dict:
        tokens, positions = batch["tokens"], batch["positions"]
        there = torch.ones_like(tokens)
        hidden = generator.electra(batch["inputs"], attention_mask=there)[0]
        places = positions[..., None].expand(-1, -1, hidden.shape[-1])
        states = generator.generator_predictions(hidden.gather(1, places))
        logits = generator.generator_lm_head(states).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens.gather(1, positions).flatten())
        with torch.no_grad():
            drawn = torch.multinomial(torch.softmax(logits.float(), dim=-1), 1)
        text = tokens.scatter(1, positions, drawn.view_as(positions))
        labels = (text != tokens).long()
        detection = discriminator(text, attention_mask=there, labels=labels).loss
        return {"generator": loss, "detection": detection}

    return [generator, discriminator], losses


def their_deberta(work: dict) -> tuple[list[Any], Callable[[dict], dict]]:
    """As `their_retromae`."""
    import torch
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM, DebertaV2Model

    published: dict[str, Any] = {
        "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
        "type_vocab_size": 0, "layer_norm_eps": 1e-7,
    }  # fmt: skip
    config = their_config(work, DebertaV2Config, **published)
    small = their_config(work, DebertaV2Config, **published)
    small.num_hidden_layers = config.num_hidden_layers // 2
    generator: Any = DebertaV2ForMaskedLM(small)
    discriminator: Any = DebertaV2Model(config)
    width, table = config.hidden_size, generator.deberta.embeddings.word_embeddings
    own = discriminator.embeddings.word_embeddings
    torch.nn.init.zeros_(own.weight)
    head = torch.nn.Sequential(
        torch.nn.Linear(width, width),
        torch.nn.GELU(),
        torch.nn.LayerNorm(width, eps=1e-7),
        torch.nn.Linear(width, 1),
    )

    def losses(batch: dict) -> dict:
        tokens, positions = batch["tokens"], batch["positions"]
        there = torch.ones_like(tokens)
        hidden = generator.deberta(batch["inputs"], attention_mask=there)[0]
        places = positions[..., None].expand(-1, -1, width)
        read = generator.cls.predictions
        logits = read.decoder(read.transform(hidden.gather(1, places))).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens.gather(1, positions).flatten())
        with torch.no_grad():
            drawn = torch.multinomial(torch.softmax(logits.float(), dim=-1), 1)
        text = tokens.scatter(1, positions, drawn.view_as(positions))
        embedded = torch.nn.functional.embedding(text, table.weight.detach() + own.weight)
        states = discriminator(inputs_embeds=embedded, attention_mask=there)[0]
        detection = torch.nn.functional.binary_cross_entropy_with_logits(
            head(states)[..., 0], (text != tokens).to(states.dtype)
        )
        return {"generator": loss, "detection": detection}

    return [generator, discriminator, head], losses


def their_step(work: dict) -> Callable[[], dict[str, float]]:
    """As `our_step`, of torch and transformers."""
    import torch

    torch.set_num_threads(len(work["cores"]))
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    made_by = {"rtd": their_rtd, "mlm": their_mlm, "deberta": their_deberta}.get(
        work["objective"], their_retromae
    )
    modules, losses = made_by(work)
    params = list(torch.nn.ModuleList(modules).train().parameters())
    decayed, rest = [p for p in params if p.ndim > 1], [p for p in params if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=work["fused"] or None)
    random = np.random.default_rng(1)
    made = [collate(work["objective"], tokens, random) for tokens in all_tokens(work)]
    batches = itertools.cycle([{n: torch.from_numpy(a) for n, a in b.items()} for b in made])

    def run() -> dict[str, float]:
        with torch.autocast("cpu", torch.bfloat16, enabled=work["dtype"] == "bfloat16"):
            terms = losses(next(batches))
        weights = {"detection": DETECTION_WEIGHT}
        total: Any = sum(weights.get(name, 1.0) * term for name, term in terms.items())
        total.backward()
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {name: float(term.detach()) for name, term in terms.items()}

    return run


def child(work: dict) -> None:
    """Answers the parent's lines, until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    os.sched_setaffinity(0, work["cores"])
    run = (our_step if work["side"] == "ours" else their_step)(work)
    for line in sys.stdin:
        # The first step compiles; the second finds the buffers of the first.
        first = json.loads(line)["do"] == "first"
        times, losses = [time.perf_counter()], []
        for _ in range(2 if first else work["steps"]):
            losses.append(run())
            times.append(time.perf_counter())
        seconds = times[1] - times[0] if first else (times[-1] - times[0]) / work["steps"]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer = {"seconds": seconds, "losses": losses[0], "peak_mib": peak}
        print(json.dumps(answer), file=answers, flush=True)


# What the parent does.


class Child(Side):
    """A child process of one side, as that of train_step.py."""

    def __init__(self, work: dict):
        command = [sys.executable, __file__, "--child", json.dumps(work)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, text=True)


def measure(options: argparse.Namespace, objective: str, cores: list[int]) -> list[dict]:
    """The results of all sides at one objective and one number of cores."""
    common = vars(options) | {"objective": objective, "cores": cores, "threads": len(cores)}
    common["batch"] = rows, length = batch_of(common)
    sides = {name: Child({**common, "side": name}) for name in options.sides}
    first = {name: side.ask("first") for name, side in sides.items()}
    timed: dict[str, list[dict]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            timed[name].append(sides[name].ask("time"))
    for side in sides.values():
        side.end()
    seconds = {name: [answer["seconds"] for answer in timed[name]] for name in sides}
    names = ("threads", "shape", "dtype", "dropout", "batch", "objective")
    results = []
    for name, each in seconds.items():
        median = float(np.median(each))
        ratios = np.divide(each, seconds.get("ours", np.nan))
        result = {
            "device": platform.processor() or platform.machine(),
            **{key: common[key] for key in names},
            "side": name,
            "seconds": [round(value, 4) for value in each],
            "steps_per_second": round(1.0 / median, 3),
            "tokens_per_second": round(rows * length / median, 1),
            "ours_over_it": round(float(np.median(ratios)), 3) if "ours" in seconds else None,
            "first_losses": {term: round(v, 4) for term, v in first[name]["losses"].items()},
            "compile_seconds": round(max(0.0, first[name]["seconds"] - median), 2),
            "peak_mib": round(timed[name][-1]["peak_mib"]),
        }
        results.append(result)
        print(json.dumps(result), flush=True)
    return results


def print_table(results: list[dict]) -> None:
    names = ("objective", "threads", "side", "steps_per_second", "tokens_per_second")
    names += ("ours_over_it", "compile_seconds", "peak_mib", "first_losses")
    print("\n| " + " | ".join(names).replace("_", " ") + " |\n" + "|---" * len(names) + "|")
    for result in results:
        cells = [json.dumps(result[name]).replace('"', "").strip("{}") for name in names]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    options = parse()
    if options.child:
        child(json.loads(options.child))
        return
    available, results = sorted(os.sched_getaffinity(0)), []
    for threads in options.threads:
        count = len(available) if threads == "all" else int(threads)
        for objective in options.objectives:
            results += measure(options, objective, available[:count])
    if options.markdown:
        print_table(results)


if __name__ == "__main__":
    main()
