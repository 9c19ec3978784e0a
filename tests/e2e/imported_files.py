"""Weights, vocabularies and configs of other code bases: how they are made, and read."""

import base64
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.reader import LINES, Reader

# Weights.


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"encoder.{i}.weight": rng.normal(size=(3, i + 1)).astype(np.float32) for i in range(6)}


def _lazy() -> dict[str, Any]:
    from t5x_lite.interop.rules import LazyArray

    return {
        name: LazyArray(array.shape, array.dtype, lambda array=array: array)
        for name, array in _tensors().items()
    }


def _make_safetensors(base: Path) -> None:
    from t5x_lite.interop.tensor_files import write_tensors

    write_tensors(base, _lazy())


def _make_shards(base: Path) -> None:
    from t5x_lite.interop.tensor_files import write_tensors

    write_tensors(base, _lazy(), shard_bytes=100)


def _make_torch(base: Path) -> None:
    from tests.interop.torch_writer import archive, state_dict, tensor

    arrays = _tensors()
    tensors = {
        name: tensor(str(i), "FloatStorage", array.size, shape=array.shape,
                     strides=(array.shape[1], 1))
        for i, (name, array) in enumerate(arrays.items())
    }  # fmt: skip
    storages = {str(i): array.tobytes() for i, array in enumerate(arrays.values())}
    archive(base / "pytorch_model.bin", state_dict(**tensors), storages)


def _make_msgpack(base: Path) -> None:
    import flax.serialization

    large = {"__msgpack_chunked_array__": True, "shape": {"0": 2, "1": 2},
             "chunks": {"0": np.ones(2, np.float32), "1": np.ones(2, np.float32)}}  # fmt: skip
    tree = {"a": {"kernel": np.ones((2, 3), np.float32)}, "b": {"scale": np.ones(2)}, "c": large}
    content = flax.serialization.msgpack_serialize(tree)
    (base / "flax_model.msgpack").write_bytes(content)


def _read_tensors(base: Path) -> None:
    from t5x_lite.interop.rules import check_finite, value_of
    from t5x_lite.interop.tensor_files import read_tensors

    tensors = read_tensors(base)
    for name, array in tensors.arrays.items():
        value = np.array(value_of(array))
        if np.issubdtype(value.dtype, np.floating):
            check_finite(tensors.where, name, value)


def _make_t5x(base: Path) -> None:
    from tests.interop.t5x_writer import parameters, write_legacy

    write_legacy(base / "checkpoint_7", parameters())


def _make_orbax(base: Path) -> None:
    from tests.interop.t5x_writer import parameters, write_orbax

    write_orbax(base / "checkpoint_7", parameters())


def _read_t5x(base: Path) -> None:
    from t5x_lite.interop.t5x import read_t5x

    checkpoint = read_t5x(base)
    for path in checkpoint.shapes:
        np.asarray(checkpoint.array(path))


# Hugging Face's directories.


def _make_spiece(base: Path) -> None:
    from pydoc_data.topics import topics

    from t5x_lite.data.vocabularies.loading import train_sentencepiece

    lines = [line for name in sorted(topics)[:12] for line in topics[name].split("\n")]
    (base / "spiece.model").write_bytes(
        train_sentencepiece(lines, size=300, output_dir=base / "made").read_bytes()
    )
    (base / "made" / "sentencepiece.model").unlink()
    (base / "made").rmdir()


def make_t5(base: Path) -> None:
    from scripts import goldens

    _make_spiece(base)
    goldens.write_release(goldens.read("t5_1_1"), base / "t5", spiece=base / "spiece.model")
    (base / "spiece.model").unlink()


def _read_t5(base: Path) -> None:
    from t5x_lite.interop.hf import read_hf

    checkpoint = read_hf(base / "t5")
    for path in checkpoint.shapes:
        np.asarray(checkpoint.array(path))


def _make_encoders(base: Path) -> None:
    from scripts import encoder_goldens

    for variant in ("bert", "roberta", "electra_discriminator", "deberta_v3"):
        encoder_goldens.write_release(encoder_goldens.read(variant), base / variant)


def _read_encoders(base: Path) -> None:
    from t5x_lite.core.errors import InputError
    from t5x_lite.interop.encoder_checkpoints import family_of
    from t5x_lite.interop.encoders import read_encoder
    from t5x_lite.interop.hf import CONFIG, read_config

    for directory in sorted(base.iterdir()):
        config = read_config(directory)
        if (family := family_of(config)) is None:
            raise InputError("another family, as import_hf says")
        read_encoder(family, directory, config, where=directory / CONFIG)


# Vocabularies.


def _use(vocabulary: Any) -> None:
    for text in LINES:
        vocabulary.decode(vocabulary.encode(text))
    vocabulary.files()
    assert vocabulary.digest
    assert vocabulary.size > vocabulary.pad_id


def _loading(*names: str) -> Callable[[Path], None]:
    def read(base: Path) -> None:
        from t5x_lite.data.vocabularies.loading import load_vocabulary

        for name in names:
            _use(load_vocabulary(base / name))

    return read


def _make_wordpiece(base: Path) -> None:
    from tests.tokenizer_files import write_wordpiece

    write_wordpiece(base)
    (base / "tokenizer_config.json").write_text('{"do_lower_case": true, "cls_token": "[CLS]"}')


def _make_tokenizers(base: Path) -> None:
    from tests.tokenizer_files import write_byte_level, write_unigram

    for name, write in (("bytes", write_byte_level), ("unigram", write_unigram)):
        (base / name).mkdir()
        write(base / name)


def _make_spm(base: Path) -> None:
    from tests.tokenizer_files import write_spm

    write_spm(base, [" ".join(LINES[:2]), *map(str, range(300))], size=60)
    (base / "added_tokens.json").write_text('{"[MASK]": 60}')
    (base / "tokenizer_config.json").write_text('{"do_lower_case": true, "split_by_punct": 1}')


def _make_bpe(base: Path) -> None:
    from tests.tokenizer_files import write_byte_level

    path = write_byte_level(base)
    model = json.loads(path.read_text())["model"]
    path.unlink()
    (base / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (base / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")


def _make_xlm(base: Path) -> None:
    from tests.tokenizer_files import write_xlm_spm

    write_xlm_spm(base, [" ".join(LINES[:2]), *map(str, range(300))], size=60)
    (base / "special_tokens_map.json").write_text('{"mask_token": "<mask>"}')


def _make_t5_tokenizers(base: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    from t5x_lite.data.vocabularies.byte_level import Bytes
    from t5x_lite.data.vocabularies.loading import SentencePiece
    from t5x_lite.interop.tokenizers import write_tokenizer

    _make_spiece(base)
    vocabulary = SentencePiece(base / "spiece.model", extra_ids=20)
    several = ("pieces", vocabulary, 319), ("bytes", Bytes(layout="hf", extra_ids=20), 259)
    for name, one, first in several:  # the id of <extra_id_0>
        (base / name).mkdir()
        write_tokenizer(one, base / name)
        added = {"<extra_id_0>": first, "<new>": 320}
        (base / name / "added_tokens.json").write_text(json.dumps(added))
    (base / "json").mkdir()
    pieces = [[piece, -float(i)] for i, piece in enumerate(vocabulary.pieces())]
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((base / "spiece.model").read_bytes())
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    table = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    normalizer = {"type": "Sequence", "normalizers": [table, strip, spaces]}
    unigram = {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False}
    content = {"model": unigram, "normalizer": normalizer}
    (base / "json" / "tokenizer.json").write_text(json.dumps(content))
    (base / "spiece.model").unlink()


def _read_t5_tokenizers(base: Path) -> None:
    from t5x_lite.interop.tokenizers import read_tokenizer

    for directory in sorted(base.iterdir()):
        with tempfile.TemporaryDirectory() as scratch:
            _use(read_tokenizer(directory, {}, vocab_size=500, sentinels="hf",
                                scratch=Path(scratch)))  # fmt: skip


def _make_encoder_tokenizers(base: Path) -> None:
    makers = _make_wordpiece, _make_tokenizers, _make_spm, _make_bpe, _make_xlm
    for name, make in zip("abcde", makers, strict=True):
        (base / name).mkdir()
        make(base / name)


def _read_encoder_tokenizers(base: Path) -> None:
    from t5x_lite.interop.tokenizers import kept_files, read_encoder_tokenizer, tokenizer_files

    several = ("a", 0), ("b/bytes", 1), ("b/unigram", 1), ("c", 0), ("d", 1), ("e", 1)
    for name, pad_id in several:
        directory = base / name
        vocabulary = read_encoder_tokenizer(directory, vocab_size=500, pad_id=pad_id)
        _use(vocabulary)
        tokenizer_files(vocabulary, kept_files(directory, vocabulary), max_length=20)
        tokenizer_files(vocabulary, {}, max_length=20)


_SPIECE = {"*.model": "binary", "*.json": "json"}
READERS = {
    "safetensors": Reader(_make_safetensors, _read_tensors, {"*.safetensors": "safetensors"}),
    "shards": Reader(
        _make_shards, _read_tensors, {"*.safetensors": "safetensors", "*.index.json": "json"}
    ),
    "torch": Reader(_make_torch, _read_tensors, {"*.bin": "archive"}),
    "msgpack": Reader(_make_msgpack, _read_tensors, {"*.msgpack": "binary"}),
    "t5x": Reader(_make_t5x, _read_t5x, {"checkpoint": "binary", ".zarray": "json", "0*": "chunk"}),
    "orbax": Reader(
        _make_orbax, _read_t5x, {"_METADATA": "json", ".zarray": "json", "0*": "binary"}
    ),
    "spiece.model": Reader(_make_spiece, _loading("spiece.model"), {"*.model": "binary"}),
    "vocab.txt": Reader(_make_wordpiece, _loading("vocab.txt"), {"*.txt": "text", **_SPIECE}),
    "tokenizer.json": Reader(
        _make_tokenizers,
        _loading("bytes/tokenizer.json", "unigram/tokenizer.json"),
        {"*.json": "json"},
    ),
    "spm.model": Reader(_make_spm, _loading("spm.model"), _SPIECE),
    "T5 tokenizers": Reader(_make_t5_tokenizers, _read_t5_tokenizers, _SPIECE),
    "encoder tokenizers": Reader(
        _make_encoder_tokenizers, _read_encoder_tokenizers, {"*.txt": "text", **_SPIECE}
    ),
    "T5 config.json": Reader(make_t5, _read_t5, {"config.json": "json"}),
    "encoder config.json": Reader(_make_encoders, _read_encoders, {"config.json": "json"}),
}
