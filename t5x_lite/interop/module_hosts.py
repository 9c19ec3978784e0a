"""Hugging Face's names of the dense layers that adapters can be attached to.

    hosts = hosts_of(T5Config(...), None, where="checkpoint")
    hosts.places["encoder.block.0.layer.0.SelfAttention.q"].site      "attention/query"

The names come from the rule tables of `interop.hf` and `interop.encoders`. Names in a file may have
the prefix of the model class or not.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from t5x_lite.core.errors import InputError
from t5x_lite.interop import hf
from t5x_lite.interop.encoder_checkpoints import with_family
from t5x_lite.interop.encoders import MODEL, learner_shapes
from t5x_lite.interop.rules import LAYER, Piece, Rule, pieces
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import HEADS, Head

_KERNEL = re.compile(
    r"(?:model/)?(?:(encoder|decoder)/)?layers/(self_attention|attention|cross_attention|mlp)/(\w+)"
    r"/kernel"
)
_BLOCKS = {"self_attention": "attention"}
_MLP = {"wi": "in", "wi_0": "gate", "wi_1": "in", "wo": "out"}
_ATTENTION = ("query", "key", "value", "out")


@dataclasses.dataclass(frozen=True)
class Place:
    """Position of a dense layer (a possible adapter site) in a model.

    Attributes:
      stack: "encoder" or "decoder".
      site: name of the dense layer within its layer, as in `nn.slots`, such as "attention/query".
      layer: index of the layer in its stack.
    """

    stack: str
    site: str
    layer: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """Dense layers of a model that adapters can be attached to, under Hugging Face's names.

    Attributes:
      places: stack, site and layer of each dense layer, by Hugging Face's exported name.
      kernels: shapes [N, in, out] of the stacked kernels, by (stack, site).
      num_heads: number of attention heads per layer.
      paths: parameter paths of the kernels, by (stack, site).
      model_type: `model_type` of config.json.
      head: head on the model, or None.
      pieces: Hugging Face tensors of the head.
      base: Hugging Face tensors of the model without the head; their paths begin with "model/".
    """

    places: Mapping[str, Place]
    kernels: Mapping[tuple[str, str], tuple[int, int, int]]
    num_heads: int
    paths: Mapping[tuple[str, str], str]
    model_type: str
    head: Head | None
    pieces: Sequence[Piece]
    base: Sequence[Piece]

    @functools.cached_property
    def bodies(self) -> dict[str, str]:
        """Hugging Face's name of each dense layer, by the name without the model class's prefix."""
        return {_body(name): name for name in self.places}

    def find(self, name: str) -> tuple[str, str] | None:
        """Split a dense layer's name; return Hugging Face's name, and the prefix before it."""
        parts = name.split(".")
        for start in range(len(parts)):
            body = ".".join(parts[start:])
            if body in self.bodies:
                return self.bodies[body], "".join(f"{part}." for part in parts[:start])
        return None


def hosts_of(
    model: ModelConfig, head: Head | None, *, model_type: str | None = None, where: object
) -> Hosts:
    """Return the dense layers that adapters can be attached to, under Hugging Face's names."""
    if is_encoder(model):
        config, family = with_family(model, where=where)
        num_heads = config.num_heads
        kind = str(family.from_model(config, head, model_type)["model_type"])
        table = family.table(config, head, kind)
        shapes = learner_shapes(config, head)
        heads = {path: shape for path, shape in shapes.items() if path.startswith(HEADS)}
        tensors = pieces([rule for rule in table if rule.ours in heads], heads)
        body = {path: shape for path, shape in shapes.items() if path not in heads}
        own = pieces([rule for rule in table if rule.ours in body], body)
    else:
        t5, kind, tensors = hf.written(model, where=where), model_type or "t5", []
        num_heads = t5.num_heads
        table = hf.table(t5)
        shapes, own = hf.model_pieces(t5)
        own = [dataclasses.replace(piece, path=MODEL + piece.path) for piece in own]
    places: dict[str, Place] = {}
    kernels: dict[tuple[str, str], tuple[int, int, int]] = {}
    paths: dict[tuple[str, str], str] = {}
    for rule in table:
        if (site := _site(rule)) is None:
            continue
        layers, features_in, features_out = shapes[rule.ours]
        kernels[site] = (layers, features_in, features_out)
        paths[site] = MODEL + rule.ours.removeprefix(MODEL)
        name = rule.theirs.removesuffix(".weight")
        for layer in range(layers):
            places[name.replace(LAYER, str(layer))] = Place(*site, layer)
    return Hosts(
        places=places,
        kernels=kernels,
        num_heads=num_heads,
        paths=paths,
        model_type=kind,
        head=head,
        pieces=tensors,
        base=own,
    )


def _site(rule: Rule) -> tuple[str, str] | None:
    match = _KERNEL.fullmatch(rule.ours)
    if match is None:
        return None
    stack, block, name = match.groups()
    if block == "mlp":
        return stack or "encoder", f"mlp/{_MLP[name]}"
    if name not in _ATTENTION:
        return None  # DeBERTa's position projections
    return stack or "encoder", f"{_BLOCKS.get(block, block)}/{name}"


def _body(name: str) -> str:
    match = re.search(r"(?:encoder|decoder)\.(?:layer|block)\.\d.*", name)
    if match is None:
        raise ValueError(f"{name} does not belong to an encoder or decoder layer")
    return match.group()


def head_modules(found: Sequence[Piece]) -> tuple[str, ...]:
    """Return Hugging Face's names of the modules of a head, such as classifier and pooler."""
    shortest = (min((piece.name, *piece.aliases), key=len) for piece in found)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in shortest))


def refuse_views(where: object, views: Sequence[object]) -> None:
    """Raise InputError if a base model shares parameters between layers or embeddings."""
    if views:
        raise InputError(
            f"base checkpoint {where} shares parameters between layers or embeddings, which "
            "adapters do not support; export it with `t5x-lite export hf` and import the result"
        )
