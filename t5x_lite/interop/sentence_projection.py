"""The module Dense of a sentence-transformers directory, in: what a pooled state is multiplied by.

    2_Dense/config.json                       sizes, whether there is a bias, the activation
    2_Dense/model.safetensors                 linear.weight [k, d], linear.bias [k]; or
    2_Dense/pytorch_model.bin

It becomes the projection of a `Dense` head. If its config says that it has a bias and the file
lacks it, the bias is 0.
"""

import dataclasses
from pathlib import Path

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS
from t5x_lite.heads.dense import Dense, Projected
from t5x_lite.interop.encoders import dense_rules
from t5x_lite.interop.hf_config import read_json
from t5x_lite.interop.rules import Piece, Source, check_finite, pieces
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.interop.torch_files import read_torch

ACTIVATIONS: dict[str, Projected] = {"Identity": "identity", "Tanh": "tanh"}
"""Classes of torch -> the head's activation."""
_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projection(Source):
    """A projection that a directory holds.

    Attributes:
      size: k.
      activation: of its result.
      bias: whether it has a bias.
    """

    size: int
    activation: Projected
    bias: bool = True

    def read(self, piece: Piece) -> np.ndarray:
        """One piece in our layout."""
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_projection(directory: Path, *, d_model: int) -> Projection:
    """The projection of a directory 2_Dense.

    Args:
      directory: of the module.
      d_model: of the encoder.

    Raises:
      InputError: it is incomplete, damaged, of other states, or has another activation.
    """
    where = directory / "config.json"
    if not where.is_file():
        raise InputError(f"{where}: there is no such file, and it says what is projected")
    config = read_json(where)
    name = str(config.get("activation_function", "")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise InputError(
            f"{where}: the activation {name or 'none'} is not supported: {', '.join(ACTIVATIONS)} "
            "are"
        )
    path = next((directory / file for file in _FILES if (directory / file).is_file()), None)
    if path is None:
        raise InputError(f"{directory}: holds neither {' nor '.join(_FILES)}")
    found = dict(read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path))
    weight = found.get("linear.weight")
    if weight is None or len(weight.shape) != 2 or weight.shape[1] != d_model:
        shape = None if weight is None else tuple(weight.shape)
        raise InputError(
            f"{path}: linear.weight has shape {shape}, and the encoder's states have {d_model}"
        )
    size = int(weight.shape[0])
    tensors = {"linear.weight": np.asarray(weight)}
    has_bias = config.get("bias", "linear.bias" in found) is not False
    if not has_bias and "linear.bias" in found:
        raise InputError(f"{path}: holds linear.bias, and bias in {where} is false")
    if has_bias:
        tensors["linear.bias"] = np.asarray(found.get("linear.bias", np.zeros(size, np.float32)))
    if has_bias and tensors["linear.bias"].shape != (size,):
        raise InputError(
            f"{path}: linear.bias has shape {tensors['linear.bias'].shape}, not {(size,)}"
        )
    start = f"{HEADS}{Dense().name}/query"
    shapes: dict[str, tuple[int, ...]] = {f"{start}/kernel": (d_model, size)}
    shapes |= {f"{start}/bias": (size,)} if has_bias else {}
    return Projection(
        where=path,
        shapes=shapes,
        pieces=pieces(
            [rule for rule in dense_rules(start, "linear") if rule.ours in shapes], shapes
        ),
        tensors=tensors,
        size=size,
        activation=ACTIVATIONS[name],
        bias=has_bias,
    )
