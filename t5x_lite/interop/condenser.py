"""Condenser's head layers beside a directory of transformers, in and out.

luyug/Condenser saves a BERT or RoBERTa with its masked-LM head as transformers does, and the head's
layers in model.pt, under the names of transformers' layers:

    c_head.{i}.attention.self.{query,key,value}.{weight,bias}     c_head.{i}.intermediate.dense...
    c_head.{i}.attention.output.{dense,LayerNorm}...              c_head.{i}.output...
    co_target                                                     a buffer of coCondenser

The buffer has the size of the batch of that run, and is not read; whatever else is in the file is
refused by name. The file does not say which layer the head skips from. The arguments that are
pickled beside it (args.pt, training_args.bin) are never read: unpickling runs what a file says.
Here the layers are written as safetensors under the same names.

Source: luyug/Condenser modeling.py, CondenserForPretraining.save_pretrained.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from t5x_lite import trees
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head
from t5x_lite.heads.mlm import Mlm
from t5x_lite.interop.bert import layer_rules
from t5x_lite.interop.rules import (
    LAYER,
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
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.nn.bind import shapes
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.condenser import Condenser

SAFETENSORS, TORCH = "condenser_head.safetensors", "model.pt"
PREFIX = "objective/"

_IGNORED = ("co_target",)
_LAYER = re.compile(r"c_head\.(\d+)\.")

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CondenserHead(Source):
    """The head's layers of a directory; no large array has been read.

    Attributes:
      objective: what trains them.
    """

    objective: Condenser

    def read(self, piece: Piece) -> np.ndarray:
        """One piece in our layout, a view of the file."""
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_condenser(
    directory: Path,
    model: EncoderConfig,
    head: Head | None,
    *,
    mask_id: int,
    skip_from: int | None,
) -> CondenserHead | None:
    """The head's layers beside an encoder; None where there are none.

    Args:
      directory: with condenser_head.safetensors or model.pt.
      model: the encoder.
      head: what stands on it.
      mask_id: the [MASK] of its vocabulary.
      skip_from: the layer whose states the head reads.

    Raises:
      InputError: there are layers and `skip_from` is None, or the other way round; the file is
        damaged or has other tensors.
    """
    where, arrays = _read(directory, needed=skip_from is not None)
    if where is None:
        return None
    if skip_from is None:
        raise InputError(
            f"{where}: holds the head of a Condenser, and does not say which layer it skips from: "
            f"give --skip-from N, which is the middle in the paper, {model.num_layers // 2} of "
            f"{model.num_layers} layers"
        )
    if head != Mlm():
        raise InputError(
            f"{where}: the head of a Condenser without a masked language model beside it: the "
            "directory must hold a BertForMaskedLM or a RobertaForMaskedLM"
        )
    numbers = {int(match[1]) for name in arrays if (match := _LAYER.match(name))}
    objective = Condenser(mask_id=mask_id, skip_from=skip_from, head_layers=max(1, len(numbers)))
    ours = _shapes(objective, model)
    wanted = pieces(layer_rules(f"{PREFIX}condenser", f"c_head.{LAYER}"), ours)
    names = check_names(where, wanted, arrays, ignored=_IGNORED)
    for piece in wanted:
        check_shape(where, piece, arrays[names[piece.name]].shape)
    tensors = {piece.name: arrays[names[piece.name]] for piece in wanted}
    return CondenserHead(
        where=where, shapes=ours, pieces=wanted, tensors=tensors, objective=objective
    )


def condenser_files(
    objective: Objective,
    model: ModelConfig,
    head: Head | None,
    arrays: Mapping[str, LazyArray],
    *,
    where: object,
) -> dict[str, dict[str, LazyArray]]:
    """The tensors of files beside an exported encoder, by the name of the file.

    Args:
      objective: of the checkpoint; none but a Condenser has such files.
      model: the encoder.
      head: what is written on it; the layers go with the masked language model's.
      arrays: the objective's own parameters, by path.
      where: they are from, for messages.

    Raises:
      InputError: the arrays are not those of the config.
    """
    if not isinstance(objective, Condenser) or not isinstance(model, EncoderConfig):
        return {}
    if head != Mlm():
        _logger.info("%s: the head of the Condenser is left out, as the head mlm is", where)
        return {}
    ours = _shapes(objective, model)
    if difference := trees.difference(ours, arrays):
        raise InputError(f"{where}: the parameters are not those of the objective: {difference}")
    wanted = pieces(layer_rules(f"{PREFIX}condenser", f"c_head.{LAYER}"), ours)
    return {SAFETENSORS: lazy_tensors(wanted, arrays, where=where)}


def _shapes(objective: Condenser, model: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the head's layers by path.

    Raises:
      InputError: the objective cannot train the model.
    """
    abstract = shapes(lambda rngs: objective.build(model, rngs=rngs))[1]
    return {PREFIX + path: tuple(leaf.shape) for path, leaf in trees.flatten(abstract).items()}


def _read(directory: Path, *, needed: bool) -> tuple[Path | None, Mapping[str, np.ndarray]]:
    """The file of the head's layers and its tensors; None where there is none.

    Args:
      directory: where.
      needed: whether there must be one; without, a model.pt of something else is passed over.
    """
    if (path := directory / SAFETENSORS).is_file():
        return path, read_safetensors(path)
    path = directory / TORCH
    if not path.is_file():
        if needed:
            raise InputError(
                f"{directory}: holds no {TORCH} and no {SAFETENSORS}, the head of a Condenser: "
                "leave --skip-from out"
            )
        return None, {}
    try:
        arrays = read_torch(path)
    except InputError as error:
        if needed:
            raise
        _logger.warning("not read: %s", error)
        return None, {}
    if needed or any(_LAYER.match(name) for name in arrays):
        return path, arrays
    _logger.info("not read: %s, which is no head of a Condenser", path)
    return None, {}
