"""Writes tests/golden/adapters/*.npz: what the library `adapters` 1.3.0 computes.

It runs in an environment of its own, since that library pins transformers 4.57:

    python -m venv GOLDENS
    GOLDENS/bin/pip install adapters torch -c scripts/adapter_goldens_constraints.txt
    GOLDENS/bin/python scripts/adapter_goldens.py

For each host, a tiny random model, a file holds its config, its weights and inputs; and for each
method its parameters, the model's output and the gradients of <output, cotangent>. Files are the
same for the same versions. tests/adapters/test_goldens.py reads them. directories.npz, which
`adapter_goldens.py directories` writes alone, holds directories that the library saved, file by
file, with heads and a composition, and what the model gives with them;
tests/interop/test_adapters_setups.py reads it. class_heads.npz (`adapter_goldens.py class_heads`)
holds directories that were saved from models with transformers' own heads;
tests/interop/test_adapters_heads.py reads it.
"""

import json
import sys
import tempfile
from pathlib import Path

import adapters
import numpy as np
import torch
import transformers

OUT = Path(__file__).resolve().parents[1] / "tests" / "golden" / "adapters"

ENCODER = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "architectures": [],
}
DEBERTA = {
    **ENCODER,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 4,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
T5 = {
    "vocab_size": 16,
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 12,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}


def hosts():
    """Name -> model, its class's name in config.json."""
    yield (
        "bert",
        transformers.BertModel(transformers.BertConfig(**ENCODER), add_pooling_layer=False),
    )
    yield "deberta", transformers.DebertaV2Model(transformers.DebertaV2Config(**DEBERTA))
    yield "t5_1_0", transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    options = {"d_kv": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    yield (
        "t5_1_1",
        transformers.T5ForConditionalGeneration(transformers.T5Config(**{**T5, **options})),
    )


def methods(host):
    """Name -> config of the library."""
    made = {
        "seq_bn": adapters.SeqBnConfig(reduction_factor=4),
        "double_seq_bn": adapters.DoubleSeqBnConfig(reduction_factor=4),
        "par_bn": adapters.ParBnConfig(reduction_factor=2),
        "norms": adapters.SeqBnConfig(
            reduction_factor=4, ln_before=True, ln_after=True, scaling="learned"
        ),
        "post_ln": adapters.SeqBnConfig(
            reduction_factor=4, residual_before_ln=False, scaling="channel"
        ),
        "compacter": adapters.CompacterConfig(reduction_factor=2, phm_dim=2),
        "compacter_plus_plus": adapters.CompacterPlusPlusConfig(reduction_factor=2, phm_dim=2),
        "lora": adapters.LoRAConfig(r=2, alpha=4),
        "dora": adapters.DoRAConfig(r=2, alpha=4),
        "ia3": adapters.IA3Config(),
    }
    if host.startswith("t5"):
        made["cross"] = adapters.DoubleSeqBnConfig(reduction_factor=4, cross_adapter=True)
    else:
        made["gate"] = adapters.SeqBnConfig(reduction_factor=4, use_gating=True)
        # The library's scale has no effect with a gate: alpha is r here, which makes it 1.
        made["gated_lora"] = adapters.LoRAConfig(r=2, alpha=2, use_gating=True)
        prefix = {"prefix_length": 3, "bottleneck_size": 4}
        made["network"] = adapters.PrefixTuningConfig(**prefix)
        made["two_gates"] = adapters.PrefixTuningConfig(
            **prefix, use_gating=True, shared_gating=False
        )
        made["unipelt"] = adapters.UniPELTConfig(
            prefix_tuning=adapters.PrefixTuningConfig(**prefix),
            adapter=adapters.SeqBnConfig(reduction_factor=4),
            lora=adapters.LoRAConfig(r=2, alpha=2),
        )
    return made


def output(model, ids, targets):
    """Logits of a T5, states of an encoder."""
    if targets is None:
        return model(input_ids=ids).last_hidden_state
    return model(input_ids=ids, decoder_input_ids=targets).logits


def fused(model, ids, targets, draw):
    """Two adapters under a fusion: the arrays of a method, with all their parameters."""
    names = ("fused_a", "fused_b")
    for name in names:
        model.add_adapter(name, config=adapters.SeqBnConfig(reduction_factor=4))
    fusion = adapters.Fuse(*names)
    model.add_adapter_fusion(fusion)
    model.set_active_adapters(fusion)
    model.eval()
    own = {n: p for n, p in model.named_parameters() if "fused_" in n}
    for name, param in sorted(own.items()):
        param.requires_grad_(True)
        # Scores have no 1 / sqrt(d): of larger ones one adapter would have all the weight.
        size = 0.3 if ".query." in name or ".key." in name else 1.0
        param.data.copy_(torch.tensor(size * draw(param.shape)))
    out = output(model, ids, targets)
    cotangent = torch.tensor(draw(out.shape))
    grads = torch.autograd.grad((out * cotangent).sum(), list(own.values()))
    found = {"fusion/out": out.detach().numpy(), "fusion/cotangent": cotangent.numpy()}
    for (name, param), grad in zip(own.items(), grads, strict=True):
        found[f"fusion/theta/{name}"] = param.detach().numpy().copy()
        found[f"fusion/grad/{name}"] = grad.numpy()
    return found


def main():
    """Writes a file for each host."""
    OUT.mkdir(parents=True, exist_ok=True)
    for number, (host, model) in enumerate(hosts()):
        rng = np.random.default_rng(number)

        def draw(shape, rng=rng):
            return (0.5 * rng.standard_normal(tuple(shape))).astype(np.float32)

        with torch.no_grad():
            for name, param in sorted(model.named_parameters()):
                start = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
                param.copy_(torch.tensor(start + draw(param.shape)))
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        arrays = {"config": np.asarray(json.dumps(config, sort_keys=True, default=str))}
        for name, tensor in model.state_dict().items():
            if tensor.dtype == torch.float32:
                arrays[f"base/{name}"] = tensor.numpy().copy()
        ids = torch.tensor(rng.integers(4, 16, (2, 5)))
        targets = None
        if host.startswith("t5"):
            targets = torch.tensor(np.pad(rng.integers(4, 16, (2, 3)), ((0, 0), (1, 0))))
            arrays["targets"] = targets.numpy()
        arrays["ids"] = ids.numpy()
        adapters.init(model)
        model.eval()
        for method, adapter in methods(host).items():
            model.add_adapter(method, config=adapter)
            model.train_adapter(method)
            model.eval()
            own = {n: p for n, p in model.named_parameters() if p.requires_grad and method in n}
            with torch.no_grad():
                for name, param in sorted(own.items()):
                    around_one = (
                        "scaling" in name or name.endswith("m.weight") or method == "ia3"
                        or ("norm" in name and name.endswith("weight"))
                    )  # fmt: skip
                    param.copy_(torch.tensor(float(around_one) + draw(param.shape)))
            out = output(model, ids, targets)
            cotangent = torch.tensor(draw(out.shape))
            grads = torch.autograd.grad((out * cotangent).sum(), list(own.values()))
            arrays[f"{method}/out"] = out.detach().numpy()
            arrays[f"{method}/cotangent"] = cotangent.numpy()
            for (name, param), grad in zip(own.items(), grads, strict=True):
                arrays[f"{method}/theta/{name}"] = param.detach().numpy().copy()
                arrays[f"{method}/grad/{name}"] = grad.numpy()
            model.set_active_adapters(None)
            model.delete_adapter(method)
        if host in ("bert", "t5_1_1"):
            arrays |= fused(model, ids, targets, draw)
        np.savez_compressed(OUT / f"{host}.npz", **arrays)


def cases(model):
    """Name -> what is in use and its head, of modules and heads that the model gets here."""
    prefix = {"prefix_length": 3, "bottleneck_size": 4}
    small = adapters.SeqBnConfig(reduction_factor=4)
    model.add_adapter("first-Task", config=small)
    model.add_adapter("other", config=small)
    model.add_adapter("before", config=adapters.PrefixTuningConfig(**prefix))
    model.add_adapter("flat", config=adapters.PrefixTuningConfig(**prefix, flat=True))
    model.add_adapter("rows", config=adapters.PromptTuningConfig(prompt_length=3))
    mam = adapters.MAMConfig(prefix_tuning=adapters.PrefixTuningConfig(**prefix))
    model.add_adapter("mam", config=mam)
    fusion = adapters.Fuse("first-Task", "other")
    model.add_adapter_fusion(fusion)
    labels = {0: "no", 1: "perhaps", 2: "yes"}
    model.add_classification_head("before", num_labels=3, id2label=labels)
    model.add_tagging_head("rows", num_labels=4)
    model.add_qa_head("flat")
    model.add_classification_head("mam", num_labels=1, activation_function="gelu")
    yield "setup", adapters.Stack("before", fusion), "before"
    for name in ("rows", "flat", "mam"):
        yield name, name, name


def directories():
    """Writes directories.npz."""
    rng = np.random.default_rng(7)
    config = transformers.BertConfig(**{**ENCODER, "max_position_embeddings": 16})
    model = adapters.BertAdapterModel(config)
    found = list(cases(model))
    with torch.no_grad():
        for name, param in sorted(model.named_parameters()):
            start = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            size = 0.3 if ".query." in name or ".key." in name else 0.5
            draw = size * rng.standard_normal(tuple(param.shape)).astype(np.float32)
            param.copy_(torch.tensor(start + draw))
    model.eval()
    plain = {**config.to_dict(), "architectures": ["BertModel"]}
    arrays = {"config": np.asarray(json.dumps(plain, sort_keys=True, default=str))}
    others = ("adapter", "prefix_tuning", "prompt_tuning", "pooler")
    for name, tensor in model.bert.state_dict().items():
        if tensor.dtype == torch.float32 and not any(part in name for part in others):
            arrays[f"base/{name}"] = tensor.numpy().copy()
    ids = torch.tensor(rng.integers(4, 16, (2, 5)))
    arrays["ids"] = ids.numpy()
    for name, use, head in found:
        model.set_active_adapters(use)
        model.active_head = head
        out = model(input_ids=ids)
        ends = (out.start_logits, out.end_logits) if head == "flat" else ()
        values = torch.stack(ends, -1) if ends else out.logits
        arrays[f"out/{name}"] = values.detach().numpy()
        with tempfile.TemporaryDirectory() as folder:
            if name == "setup":
                model.save_adapter_setup(folder, use, head_setup=head)
            else:
                model.save_adapter(folder, name, use_safetensors=name == "rows")
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    content = np.frombuffer(path.read_bytes(), np.uint8)
                    arrays[f"file/{name}/{path.relative_to(folder)}"] = content
    OUT.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUT / "directories.npz", **arrays)


def class_models():
    """Name -> model of a transformers class with a head, and what is in use."""
    encoder = {**ENCODER, "num_hidden_layers": 1, "num_labels": 3}
    longer = {**encoder, "max_position_embeddings": 16, "type_vocab_size": 1}
    deberta = {**DEBERTA, "num_hidden_layers": 1}
    labels = {"label2id": {"no": 0, "perhaps": 1, "yes": 2}}
    labels["id2label"] = {number: label for label, number in labels["label2id"].items()}
    bert = transformers.BertConfig
    yield "bert_classes", transformers.BertForSequenceClassification(bert(**encoder, **labels))
    yield "bert_span", transformers.BertForQuestionAnswering(bert(**{**encoder, "num_labels": 2}))
    yield "bert_mlm", transformers.BertForMaskedLM(bert(**encoder))
    roberta = transformers.RobertaConfig(**longer)
    yield "roberta_classes", transformers.RobertaForSequenceClassification(roberta)
    yield "roberta_tokens", transformers.RobertaForTokenClassification(roberta)
    config = transformers.DebertaV2Config(**deberta, num_labels=3)
    yield "deberta_classes", transformers.DebertaV2ForSequenceClassification(config)
    config = transformers.ElectraConfig(**encoder, embedding_size=8)
    yield "electra_classes", transformers.ElectraForSequenceClassification(config)
    t5 = {
        **T5,
        "vocab_size": 260,
        "num_layers": 1,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }
    yield "t5", transformers.T5ForConditionalGeneration(transformers.T5Config(**t5))
    yield "setup", transformers.BertForTokenClassification(bert(**encoder))


def class_heads():
    """Writes class_heads.npz."""
    rng = np.random.default_rng(11)
    arrays = {}
    for name, model in class_models():
        with torch.no_grad():
            for part, param in sorted(model.named_parameters()):
                start = 1.0 if "norm" in part.lower() and part.endswith("weight") else 0.0
                draw = 0.5 * rng.standard_normal(tuple(param.shape)).astype(np.float32)
                param.copy_(torch.tensor(start + draw))
        config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        arrays[f"{name}/config"] = np.asarray(json.dumps(config, sort_keys=True, default=str))
        for part, tensor in model.state_dict().items():
            if tensor.dtype == torch.float32 and not part.endswith("decoder.weight"):
                arrays[f"{name}/base/{part}"] = tensor.numpy().copy()
        adapters.init(model)
        names = ("one", "two") if name == "setup" else ("one",)
        for own in names:
            model.add_adapter(own, config=adapters.SeqBnConfig(reduction_factor=4))
        use = adapters.Stack(*names)
        model.train_adapter(use)
        with torch.no_grad():
            for part, param in sorted(model.named_parameters()):
                # The library trains the head, too; the tied embedding stays as it is.
                head = param.requires_grad and "decoder.weight" not in part
                if ".adapters." in part or (head and name != "t5"):
                    draw = 0.5 * rng.standard_normal(tuple(param.shape)).astype(np.float32)
                    param.copy_(torch.tensor(draw))
        model.eval()
        ids = torch.tensor(rng.integers(4, 16, (2, 5)))
        arrays[f"{name}/ids"] = ids.numpy()
        if name == "t5":
            targets = torch.tensor(np.pad(rng.integers(4, 16, (2, 3)), ((0, 0), (1, 0))))
            arrays[f"{name}/targets"] = targets.numpy()
            values = model(input_ids=ids, decoder_input_ids=targets).logits
        else:
            out = model(input_ids=ids)
            ends = (out.start_logits, out.end_logits) if name == "bert_span" else ()
            values = torch.stack(ends, -1) if ends else out.logits
        arrays[f"{name}/out"] = values.detach().numpy()
        with tempfile.TemporaryDirectory() as folder:
            if name == "setup":
                model.save_adapter_setup(folder, use)
            else:
                model.save_adapter(folder, "one")
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    content = np.frombuffer(path.read_bytes(), np.uint8)
                    arrays[f"{name}/file/{path.relative_to(folder)}"] = content
    np.savez_compressed(OUT / "class_heads.npz", **arrays)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["hosts", "directories", "class_heads"]
    if "hosts" in wanted:
        main()
    if "directories" in wanted:
        directories()
    if "class_heads" in wanted:
        class_heads()
