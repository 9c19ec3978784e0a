"""Encoders of all families of Hugging Face, in and out, and their layers that hold adapters.

Import and export of Hugging Face encoders of all supported families.

An import also reads the encoder's head, and selects an objective that trains the head. An export
writes one head: the user's choice, or else the head of the objective.

Hugging Face's names of the dense layers that adapters can be attached to.

    hosts = hosts_of(T5Config(...), None, where="checkpoint")
    hosts.places["encoder.block.0.layer.0.SelfAttention.q"].site      "attention/query"

The names come from the rule tables of `interop.hf` and `interop.encoders`. Names in a file may have
the prefix of the model class or not.
"""

import dataclasses
import functools
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from t5x_lite.config import Experiment
from t5x_lite.core import tied_parameters
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.interop import hf
from t5x_lite.interop.deberta import DEBERTA
from t5x_lite.interop.encoders import (
    BERT,
    MODEL,
    POOLER,
    EncoderCheckpoint,
    Family,
    encoder_tensors,
    learner_shapes,
    read_encoder,
    with_kept,
)
from t5x_lite.interop.hf import CONFIG, common_dtype, read_json
from t5x_lite.interop.retrievers import FILES as M3_FILES
from t5x_lite.interop.retrievers import POOLER as VECTORS_POOLER
from t5x_lite.interop.retrievers import PREFIX as OBJECTIVE
from t5x_lite.interop.retrievers import (
    CondenserHead,
    M3Heads,
    condenser_files,
    flag_embedding,
    flag_tokenizer,
    m3_files,
    projection_of,
    read_condenser,
    read_m3,
    read_pooler,
    read_sentences,
    sentence_files,
)
from t5x_lite.interop.rules import (
    LAYER,
    LazyArray,
    Piece,
    Rule,
    Source,
    check_finite,
    pieces,
    value_of,
)
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from t5x_lite.interop.tokenizers import kept_files, read_encoder_tokenizer, tokenizer_files
from t5x_lite.layouts import Encoder
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig, is_encoder
from t5x_lite.models.heads import HEADS, Classifier, ClassifierKind, Head, Mlm, by_name, is_custom
from t5x_lite.models.vector_heads import Dense
from t5x_lite.objectives.learner import heads_of, views_of
from t5x_lite.objectives.task_heads import objective_for
from t5x_lite.optim.config import AdamW, Constant

_logger = logging.getLogger(__name__)


FAMILIES: tuple[Family, ...] = (BERT, DEBERTA)

MODEL_TYPES = tuple(kind for family in FAMILIES for kind in family.model_types)
"""Values of config.json's `model_type` for all supported encoders."""


def family_of(hf_config: Mapping[str, Any]) -> Family | None:
    """Return the encoder family of config.json's model_type, or None if it is not an encoder."""
    kind = hf_config.get("model_type")
    return next((family for family in FAMILIES if kind in family.model_types), None)


def with_family(model: ModelConfig, *, where: object) -> tuple[EncoderConfig, Family]:
    """Return an encoder's config and its family, such as BERT."""
    for family in FAMILIES:
        # A subclass may compute something else, which transformers cannot represent.
        if isinstance(model, EncoderConfig) and type(model) is family.config:
            return model, family
    raise InputError(
        f"checkpoint {where} is of class {type(model).__name__}, which transformers does not have"
    )


def classifier_kind(model: EncoderConfig, heads: Iterable[Head]) -> ClassifierKind:
    """Return the kind of classification head for fine-tuning, such as "bert" or "roberta"."""
    named = by_name(heads)
    if isinstance(classifier := named.get("classifier"), Classifier):
        return classifier.kind
    # A pretrained or imported ELECTRA is a BERT with the head "rtd".
    return (
        "electra" if "rtd" in named and model.classifier_kind == "bert" else model.classifier_kind
    )


Part = Literal["model", "generator"]
"""Model to export from a checkpoint, or to import from a DeBERTaV3 release."""

POOLER_FILE = "pooler.safetensors"
"""File in an imported checkpoint that keeps BERT's pooler if no classifier uses it."""
_GENERATOR, _GENERATOR_CONFIG = "pytorch_model.generator.bin", "generator_config.json"
"""Microsoft's names of the generator's files; the discriminator is in the same directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """Contents of a Hugging Face encoder directory.

    Attributes:
      checkpoint: config and arrays of the encoder.
      vocabulary: vocabulary of the tokenizer.
      tokenizer: contents of the tokenizer files to keep unchanged for an export, by name.
      vectors: head that computes text vectors, or None if no file describes one.
      condenser: head layers of a Condenser, or None.
      m3: heads of a BGE-M3, or None.
      projection: arrays of the projection of text vectors, or None.
    """

    checkpoint: EncoderCheckpoint
    vocabulary: Tokenizer
    tokenizer: Mapping[str, bytes]
    vectors: Dense | None
    condenser: CondenserHead | None = None
    m3: M3Heads | None = None
    projection: Source | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        beside = (self.condenser, self.m3, self.projection)
        return (self.checkpoint, *(each for each in beside if each is not None))

    def arrays(self) -> dict[str, LazyArray]:
        """Return all parameters by path as lazy arrays; each is read when it is needed."""
        found = [source.lazy_arrays() for source in self.sources]
        return {path: array for arrays in found for path, array in arrays.items()}

    def experiment(self, place: Path) -> Experiment:
        """Return an experiment config for the imported model, with its objective and heads.

        Args:
          place: path of the imported vocabulary.
        """
        model, head = self.checkpoint.model, self.checkpoint.head
        objective, task = objective_for(head, mask_id=self.vocabulary.mask_id)
        if self.condenser is not None:
            objective = self.condenser.objective
        others: list[Head] = []
        if self.m3 is not None:
            objective, task = self.m3.objective(self.vectors), "tasks.pairs:jsonl"
            others = [self.m3.lexical, self.m3.multi_vector]
        layout = next(iter(objective.layouts), Encoder)()
        most = model.max_positions - model.first_position
        length = min(512, most)
        if self.m3 is not None and self.vectors is not None and self.vectors.max_length:
            length = min(self.vectors.max_length, most)
        return Experiment(
            model=model,
            objective=objective,
            heads=tuple(each for each in (head, self.vectors, *others) if each is not None),
            data=Data(
                task=task,
                vocabulary=str(place),
                layout=layout,
                pack=layout.packs,
                inputs_length=length,
                targets_length=length,  # length of passages, in layouts that have them
                extra_ids=0,
            ),
            optimizer=AdamW(schedule=Constant(value=5e-5)),
            steps=1000,
        )


def pooler_file(checkpoint: EncoderCheckpoint) -> bytes:
    """Return the bytes of a safetensors file with the weights of BERT's pooler."""
    arrays = {f"{POOLER}.{leaf}": value_of(array) for leaf, array in checkpoint.pooler.items()}
    for name, array in arrays.items():
        check_finite(checkpoint.where, name, array)
    lazy = {
        name: LazyArray(array.shape, array.dtype, functools.partial(np.asarray, array))
        for name, array in arrays.items()
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / POOLER_FILE
        write_safetensors(path, lazy)
        return path.read_bytes()


def read_pooler_file(content: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of BERT's pooler by name, from the bytes of a safetensors file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / POOLER_FILE
        path.write_bytes(content)
        return {name: np.array(array) for name, array in read_safetensors(path).items()}


def generator_config(source: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the generator that was trained with a DeBERTaV3 model."""
    if not (source / _GENERATOR).is_file():
        raise InputError(
            f"{source}: contains no {_GENERATOR}, the generator of a DeBERTaV3 release; remove "
            "--part to import the model"
        )
    path = source / _GENERATOR_CONFIG
    own = read_json(path) if path.is_file() else {}
    return {**({"model_type": config.get("model_type")} if own else config), **own}


def read_release(
    family: Family,
    source: Path,
    hf_config: Mapping[str, Any],
    *,
    part: Part = "model",
    skip_from: int | None = None,
) -> Release:
    """Read a Hugging Face encoder directory; load large arrays only when they are needed."""
    where = source / CONFIG
    if part == "generator" and (source / _GENERATOR_CONFIG).is_file():
        where = source / _GENERATOR_CONFIG
    weights = source / _GENERATOR if part == "generator" else None
    checkpoint = read_encoder(family, source, hf_config, where=where, weights=weights)
    model = checkpoint.model
    vocabulary = read_encoder_tokenizer(source, vocab_size=model.vocab_size, pad_id=model.pad_id)
    vectors, projection = _vectors(source, model, vocabulary) if part == "model" else (None, None)
    return Release(
        checkpoint=checkpoint,
        vocabulary=vocabulary,
        tokenizer=kept_files(source, vocabulary),
        vectors=vectors,
        condenser=(
            read_condenser(
                *(source, model, checkpoint.head),
                mask_id=vocabulary.mask_id,
                skip_from=skip_from,
            )
            if part == "model"
            else None
        ),
        m3=read_m3(source, model, specials=_specials(vocabulary)) if part == "model" else None,
        projection=projection,
    )


def _vectors(
    source: Path, model: EncoderConfig, vocabulary: Tokenizer
) -> tuple[Dense | None, Source | None]:
    own = read_sentences(source, d_model=model.d_model, lowers=_lowers(vocabulary))
    pooler = read_pooler(source, d_model=model.d_model)
    if pooler is None:
        return own, projection_of(source, d_model=model.d_model)
    if own is not None:
        raise InputError(
            f"{source}: {VECTORS_POOLER} and modules.json both define how text vectors are "
            "computed; remove one of them"
        )
    return pooler.head, pooler


def _specials(vocabulary: Tokenizer) -> tuple[int, ...]:
    ids = (vocabulary.cls_id, vocabulary.pad_id, vocabulary.sep_id, vocabulary.unk_id)
    return tuple(sorted(ids))


def _lowers(vocabulary: Tokenizer) -> bool:
    """Return True if a tokenizer lower-cases text."""
    letters = " ".join("abcdefghijklmnopqrstuvwxyz")
    return vocabulary.encode(letters.upper()) == vocabulary.encode(letters)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Contents of an exported directory that transformers can load.

    Attributes:
      config: content of config.json.
      tensors: tensors of the weights file by name.
      files: contents of tokenizer files and other files by path.
      beside: tensors of further weight files, by file name.
    """

    config: dict[str, Any]
    tensors: dict[str, LazyArray]
    files: dict[str, bytes]
    beside: dict[str, dict[str, LazyArray]]


def export_of(
    experiment: Experiment,
    params: Mapping[str, LazyArray],
    vocabulary: Vocabulary,
    *,
    part: Part = "model",
    cast: Callable[[LazyArray], LazyArray],
    model_type: str | None,
    kept: Mapping[str, bytes],
    head: str | None = None,
    sentences: Dense | None = None,
    max_length: int | None = None,
    where: object,
) -> Export:
    """Convert an encoder and its head into transformers' format."""
    beside: dict[str, dict[str, LazyArray]] = {}
    flag = ""
    if part == "generator":
        generator, written, arrays = _generator(experiment, params, where=where)
        model, family = with_family(generator, where=where)
    else:
        model, family = with_family(experiment.model, where=where)
        name = "none" if sentences is not None else head
        written = exported_head(experiment, family, name, where=where)
        arrays = _own(experiment, params, written, where=where)
        own = {n: cast(array) for n, array in params.items() if n.startswith(OBJECTIVE)}
        beside = condenser_files(experiment.objective, model, written, own, where=where)
        heads = heads_of(experiment.objective, experiment.heads)
        casted = {n: cast(array) for n, array in params.items() if n.startswith(HEADS)}
        beside |= m3_files(heads, model, casted, where=where)
        flag = flag_embedding(heads, model)
    arrays = {path: cast(array) for path, array in arrays.items()}
    if family.fitted is not None:
        model, arrays = family.fitted(model, arrays)
    config = family.from_model(model, written, model_type)
    if part == "model":
        earlier = _object(kept.get(CONFIG, b"{}"))
        config = with_kept(family, config, earlier, model=model, head=written)
    tensors = encoder_tensors(
        family, model, written, arrays, model_type=config["model_type"], where=where
    )
    dtype = common_dtype(arrays.values())
    files: dict[str, bytes] = {}
    if isinstance(vocabulary, Tokenizer):
        longest = model.max_positions - model.first_position
        files = tokenizer_files(vocabulary, kept, max_length=longest)
        if flag:
            files = flag_tokenizer(files, vocabulary.names, where=where)
            _logger.info("load the exported directory in FlagEmbedding with %s", flag)
    else:
        _logger.warning(
            "%s: exporting without a tokenizer, because a %s vocabulary cannot be "
            "converted to transformers",
            where,
            type(vocabulary).__name__,
        )
    if sentences is not None:
        longest = max_length or model.max_positions - model.first_position
        files |= sentence_files(sentences, d_model=model.d_model, max_length=longest)
    return Export(
        config={**config, "dtype": dtype, "torch_dtype": dtype},
        tensors=tensors,
        files=files,
        beside=beside,
    )


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def exported_head(
    experiment: Experiment, family: Family, name: str | None, *, where: object
) -> Head | None:
    """Return the head to export, or None to export the encoder without a head."""
    heads = heads_of(experiment.objective, experiment.heads)
    known = {key: head for key, head in heads.items() if family.heads(head) and not is_custom(head)}
    if name == "none":
        return None
    if name is not None:
        if name not in known:
            raise InputError(
                f"checkpoint {where} has no head {name!r} that transformers supports; its "
                f"supported heads are {', '.join(known) or 'none'}"
            )
        return known[name]
    own = [head.name for head in experiment.objective.heads(heads)]
    chosen = [key for key in own if key in known] or list(known)
    if len(chosen) > 1:
        raise InputError(
            f"checkpoint {where} has the heads {', '.join(known)}, but an export can have only "
            "one; select a head with --head NAME, or none with --head none"
        )
    for key, head in heads.items():
        if key not in known and key not in M3_FILES and head.has_parameters:
            _logger.warning("%s: skipping head %s, which transformers does not support", where, key)
    if left := [key for key in known if key not in chosen]:
        _logger.warning(
            "%s: skipping these heads, because a transformers directory can have only one head: %s",
            where,
            ", ".join(left),
        )
    return known[chosen[0]] if chosen else None


def _generator(
    experiment: Experiment, params: Mapping[str, LazyArray], *, where: object
) -> tuple[ModelConfig, Head | None, dict[str, LazyArray]]:
    """Return the config, head and parameters of the generator of replaced-token detection."""
    generator = experiment.objective.models().get("generator")
    if generator is None:
        raise InputError(
            f"checkpoint {where} has no generator; only checkpoints of objective Electra have "
            f"one, but this objective is {type(experiment.objective).__name__}"
        )
    seen = seen_params(experiment, params, where=where)
    arrays = _moved(seen, "objective/generator/", MODEL)
    arrays |= _moved(seen, "objective/generator_head/", f"{HEADS}{Mlm().name}/")
    return generator, Mlm(), arrays


def _own(
    experiment: Experiment, params: Mapping[str, LazyArray], head: Head | None, *, where: object
) -> dict[str, LazyArray]:
    seen = seen_params(experiment, params, where=where)
    arrays = _moved(seen, MODEL, MODEL)
    return arrays if head is None else arrays | _moved(seen, *[f"{HEADS}{head.name}/"] * 2)


def seen_params(
    experiment: Experiment, params: Mapping[str, LazyArray], *, where: object
) -> dict[str, LazyArray]:
    """Return all parameters of a model by path, with shared parameters repeated for each layer."""
    try:
        return tied_parameters.read_lazily(views_of(experiment.model, experiment.objective), params)
    except ValueError as error:
        raise InputError(
            f"checkpoint {where}: the parameters do not match its config: {error}"
        ) from error


def _moved(params: Mapping[str, LazyArray], old: str, new: str) -> dict[str, LazyArray]:
    return {
        new + path.removeprefix(old): array
        for path, array in params.items()
        if path.startswith(old)
    }


_KERNEL = re.compile(
    r"(?:model/)?(?:(encoder|decoder)/)?layers/(self_attention|attention|cross_attention|mlp)/(\w+)"
    r"/kernel"
)
_BLOCKS = {"self_attention": "attention"}
_MLP = {"wi": "in", "wi_0": "gate", "wi_1": "in", "wo": "out"}
_ATTENTION = ("query", "key", "value", "out")


@dataclasses.dataclass(frozen=True)
class Place:
    """Position of a dense layer in a model.

    Attributes:
      stack: "encoder" or "decoder".
      site: name of the dense layer within a transformer layer, such as "attention/query".
      layer: index of the layer in its stack.
    """

    stack: str
    site: str
    layer: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """Dense layers of a model that adapters can be attached to.

    Attributes:
      places: position of each dense layer, by Hugging Face module name.
      kernels: shapes [layers, inputs, outputs] of the kernels, by (stack, site).
      num_heads: number of attention heads per layer.
      paths: parameter paths of the kernels, by (stack, site).
      model_type: `model_type` of config.json.
      head: head on the model, or None.
      pieces: Hugging Face tensors of the task head, with their t5x_lite parameter paths.
      base: Hugging Face tensors of the model without the head, with their t5x_lite paths.
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
        return {_body(name): name for name in self.places}

    def find(self, name: str) -> tuple[str, str] | None:
        parts = name.split(".")
        for start in range(len(parts)):
            body = ".".join(parts[start:])
            if body in self.bodies:
                return self.bodies[body], "".join(f"{part}." for part in parts[:start])
        return None


def hosts_of(
    model: ModelConfig, head: Head | None, *, model_type: str | None = None, where: object
) -> Hosts:
    """Return the dense layers of a model that adapters can be attached to."""
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
        raise ValueError(f"the parameter {name} does not belong to an encoder or decoder layer")
    return match.group()


def head_modules(found: Sequence[Piece]) -> tuple[str, ...]:
    """Return Hugging Face's names of the modules of a head, such as classifier and pooler."""
    shortest = (min((piece.name, *piece.aliases), key=len) for piece in found)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in shortest))


def refuse_views(where: object, views: Sequence[object]) -> None:
    if views:
        raise InputError(
            f"base checkpoint {where} shares parameters between layers or embeddings, which "
            "adapters do not support; export it with `t5x-lite export hf` and import the result"
        )
