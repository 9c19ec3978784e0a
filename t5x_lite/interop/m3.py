"""BGE-M3's heads beside a directory of an XLM-R, in and out.

    colbert_linear.pt     weight [k, d], bias [k]       heads/multi_vector/out
    sparse_linear.pt      weight [1, d], bias [1]       heads/lexical/out

Each file is the state of one linear layer, as FlagEmbedding saves it; the directory itself is that
of sentence-transformers, with the pooling of [CLS] and vectors of length 1. A file with anything
but these tensors is refused, and nothing in it is run (`interop.torch_files`). Exports have the
same files; safetensors under the same names are read, too. Releases without them have newly
initialized heads, which the log says.

FlagEmbedding reads the end token of the tokenizer as eos_token. A BERT's tokenizer names it
sep_token only, so `flag_tokenizer` adds the name to the exported tokenizer_config.json.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS, Head
from t5x_lite.heads.dense import Dense
from t5x_lite.heads.lexical import Lexical
from t5x_lite.heads.multi_vector import MultiVector
from t5x_lite.interop.encoders import dense_rules
from t5x_lite.interop.rules import (
    LazyArray,
    Piece,
    Source,
    check_finite,
    check_names,
    check_shape,
    lazy_tensors,
    pieces,
)
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.interop.torch_files import read_torch
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.objectives.m3 import M3, m3
from t5x_lite.vocabulary.files import TOKENIZER_CONFIG_NAME

_ROLES = {"bos_token": "cls", "eos_token": "sep"}
"""Roles of special tokens that FlagEmbedding reads under another name."""

FILES = {"lexical": "sparse_linear", "multi_vector": "colbert_linear"}
"""Names of the heads, and of their files without a suffix."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class M3Heads(Source):
    """The heads of a directory.

    Attributes:
      lexical: the config of the head of terms.
      multi_vector: the config of the head of tokens' vectors.
    """

    lexical: Lexical
    multi_vector: MultiVector

    def read(self, piece: Piece) -> np.ndarray:
        """One piece in our layout, a view of its file."""
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)

    def objective(self, vectors: Dense | None) -> M3:
        """What trains the heads.

        Args:
          vectors: how the directory makes a vector of a text, where it says so.
        """
        own = (
            {} if vectors is None else {"pooling": vectors.pooling, "normalize": vectors.normalize}
        )
        return m3(vector_size=self.multi_vector.size, specials=self.lexical.specials, **own)


def read_m3(directory: Path, model: EncoderConfig, *, specials: tuple[int, ...]) -> M3Heads | None:
    """The heads beside an encoder; None where there are none.

    Args:
      directory: with colbert_linear and sparse_linear, each .pt or .safetensors.
      model: the encoder.
      specials: tokens of its vocabulary that are no terms.

    Raises:
      InputError: one of the two is missing, damaged, or has other tensors.
    """
    places = {name: _place(directory, stem) for name, stem in FILES.items()}
    if not any(places.values()):
        return None
    arrays: dict[str, np.ndarray] = {}
    for name, path in places.items():
        if path is None:
            raise InputError(
                f"{directory}: has no {FILES[name]}.pt, which stands beside the other head of a "
                "BGE-M3: both are needed, or none"
            )
        tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path)
        check_names(
            path, pieces(dense_rules("out", ""), _shapes(1, 1)), _dotted(tensors), ignored=()
        )
        arrays |= {f"{FILES[name]}.{key}": value for key, value in tensors.items()}
    weight = arrays[f"{FILES['multi_vector']}.weight"]
    size = weight.shape[0] if weight.ndim else 0
    ours = _all_shapes(model, size=size)
    wanted = _pieces(ours)
    for piece in wanted:
        check_shape(directory, piece, arrays[piece.name].shape)
    return M3Heads(
        where=directory,
        shapes=ours,
        pieces=wanted,
        tensors={piece.name: arrays[piece.name] for piece in wanted},
        lexical=Lexical(specials=specials),
        multi_vector=MultiVector(size=None if size == model.d_model else size),
    )


def m3_files(
    heads: Mapping[str, Head],
    model: EncoderConfig,
    arrays: Mapping[str, LazyArray],
    *,
    where: object,
) -> dict[str, dict[str, LazyArray]]:
    """The tensors of the files beside an exported encoder, by name of the file.

    Args:
      heads: those of the checkpoint, by name.
      model: the encoder.
      arrays: the checkpoint's parameters, by path.
      where: they are from, for messages.
    """
    vectors = heads.get("multi_vector")
    if not isinstance(vectors, MultiVector) or not isinstance(heads.get("lexical"), Lexical):
        return {}
    ours = _all_shapes(model, size=vectors.size or model.d_model)
    own = {path: arrays[path] for path in ours}
    tensors = lazy_tensors(_pieces(ours), own, where=where)
    return {
        f"{stem}.pt": {
            name.removeprefix(f"{stem}."): array
            for name, array in tensors.items()
            if name.startswith(f"{stem}.")
        }
        for stem in FILES.values()
    }


def flag_tokenizer(
    files: Mapping[str, bytes], names: Mapping[str, str], *, where: object
) -> dict[str, bytes]:
    """Name the first and the last token of a text in tokenizer_config.json for FlagEmbedding.

    Args:
      files: an export's tokenizer files, by name.
      names: special tokens of the vocabulary by role, "cls" and "sep".
      where: the checkpoint, for messages.

    Returns:
      The files. Names that a file already has are kept.

    Raises:
      InputError: tokenizer_config.json is not a JSON object.
    """
    try:
        config = json.loads(files.get(TOKENIZER_CONFIG_NAME, b"{}"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: its {TOKENIZER_CONFIG_NAME} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise InputError(f"{where}: its {TOKENIZER_CONFIG_NAME} is not a JSON object")
    missing = {field: names[role] for field, role in _ROLES.items() if not config.get(field)}
    if not missing:
        return dict(files)
    content = json.dumps(config | missing, ensure_ascii=False, indent=2).encode() + b"\n"
    return {**files, TOKENIZER_CONFIG_NAME: content}


def flag_embedding(heads: Mapping[str, Head], model: EncoderConfig) -> str:
    """Return the line of Python by which FlagEmbedding loads an export; "" without the heads.

    Args:
      heads: those of the checkpoint, by name.
      model: the encoder.
    """
    vectors = heads.get("multi_vector")
    if not isinstance(vectors, MultiVector) or not isinstance(heads.get("lexical"), Lexical):
        return ""
    size = vectors.size or model.d_model
    option = "" if size == model.d_model else f", colbert_dim={size}"
    return f'BGEM3FlagModel("DIRECTORY_OR_NAME"{option})'


def _place(directory: Path, stem: str) -> Path | None:
    paths = [directory / f"{stem}{suffix}" for suffix in (".safetensors", ".pt")]
    return next((path for path in paths if path.is_file()), None)


def _dotted(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f".{name}": array for name, array in tensors.items()}


def _shapes(d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    return {"out/kernel": (d_in, d_out), "out/bias": (d_out,)}


def _all_shapes(model: EncoderConfig, *, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of both heads by path."""
    sizes = {"lexical": 1, "multi_vector": size}
    return {
        f"{HEADS}{name}/{path}": shape
        for name, d_out in sizes.items()
        for path, shape in _shapes(model.d_model, d_out).items()
    }


def _pieces(ours: Mapping[str, tuple[int, ...]]) -> list[Piece]:
    table = [
        rule for name, stem in FILES.items() for rule in dense_rules(f"{HEADS}{name}/out", stem)
    ]
    return pieces(table, ours)
