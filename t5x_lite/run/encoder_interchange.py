"""What `run.interchange` needs of encoders: their directories read, and made.

A masked language model is imported with objective MaskedLM, whose head is at objective/head; a
discriminator and an encoder alone with objective Imported. On the way out the objective says which
head there is, and what the model's own parameters are.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from t5x_lite import views
from t5x_lite.config import Experiment
from t5x_lite.data.config import Data
from t5x_lite.errors import InputError
from t5x_lite.interop.bert import BERT
from t5x_lite.interop.deberta import DEBERTA
from t5x_lite.interop.encoder_tokenizer import (
    kept_files,
    read_encoder_tokenizer,
    tokenizer_files,
)
from t5x_lite.interop.encoders import (
    HEAD,
    MODEL,
    EncoderCheckpoint,
    Family,
    Head,
    encoder_tensors,
    read_encoder,
)
from t5x_lite.interop.hf import common_dtype
from t5x_lite.interop.hf_config import CONFIG, read_json
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.sentence_transformers import SentenceEncoder, sentence_files
from t5x_lite.learner import views_of
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.nn.bind import bind
from t5x_lite.nn.heads import DebertaRtdHead, ElectraRtdHead, MaskedLMHead
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.imported import Imported
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Constant
from t5x_lite.run.loading import learner_of
from t5x_lite.vocabulary.loading import Vocabulary
from t5x_lite.vocabulary.tokenizer import Tokenizer

FAMILIES: tuple[Family, ...] = (BERT, DEBERTA)

MODEL_TYPES = tuple(kind for family in FAMILIES for kind in family.model_types)
"""Those of all encoders."""

Part = Literal["model", "generator"]
"""What of a checkpoint is exported, or of a release of DeBERTaV3 imported."""

_GENERATOR, _GENERATOR_CONFIG = "pytorch_model.generator.bin", "generator_config.json"
"""What Microsoft's releases call the generator, beside the discriminator."""

_logger = logging.getLogger(__name__)


def family_of(hf_config: Mapping[str, Any]) -> Family | None:
    """The family of a config.json's model_type; None where it is of no encoder."""
    kind = hf_config.get("model_type")
    return next((family for family in FAMILIES if kind in family.model_types), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """An encoder's directory.

    Attributes:
      checkpoint: config and arrays.
      vocabulary: of its tokenizer.
      tokenizer: its tokenizer files by name, those that the vocabulary does not write.
    """

    checkpoint: EncoderCheckpoint
    vocabulary: Tokenizer
    tokenizer: Mapping[str, bytes]

    def experiment(self, place: Path) -> Experiment:
        """A config around the model.

        Args:
          place: where its vocabulary will be.
        """
        model, head = self.checkpoint.model, self.checkpoint.head
        objective: Objective
        if head == "masked_lm":
            objective = MaskedLM(mask_id=self.vocabulary.mask_id)
        else:
            objective = Imported(head=head)
        return Experiment(
            model=model,
            objective=objective,
            data=Data(
                task="tasks.encoder:documents",
                vocabulary=str(place),
                layout="encoder",
                inputs_length=min(512, model.max_positions - model.first_position),
                extra_ids=0,
            ),
            optimizer=AdamW(schedule=Constant(value=5e-5)),
            steps=1000,
        )


def generator_config(source: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a release's generator: generator_config.json, or config.json itself.

    Args:
      source: the release.
      config: the content of its config.json.

    Raises:
      InputError: there is no generator, or its config is no JSON object.
    """
    if not (source / _GENERATOR).is_file():
        raise InputError(
            f"{source}: holds no {_GENERATOR}, the generator of a release of DeBERTaV3; leave "
            "--part out for what else it holds"
        )
    path = source / _GENERATOR_CONFIG
    own = read_json(path) if path.is_file() else {}
    return {**({"model_type": config.get("model_type")} if own else config), **own}


def read_release(
    family: Family, source: Path, hf_config: Mapping[str, Any], *, part: Part = "model"
) -> Release:
    """Reads an encoder's directory, but no large array.

    Args:
      family: of the encoder.
      source: the directory.
      hf_config: the content of its config.json, or what `generator_config` gave.
      part: which of a release's models.

    Raises:
      InputError: it is incomplete, damaged or of another kind.
    """
    where = source / CONFIG
    if part == "generator" and (source / _GENERATOR_CONFIG).is_file():
        where = source / _GENERATOR_CONFIG
    weights = source / _GENERATOR if part == "generator" else None
    checkpoint = read_encoder(family, source, hf_config, where=where, weights=weights)
    model = checkpoint.model
    vocabulary = read_encoder_tokenizer(source, vocab_size=model.vocab_size, pad_id=model.pad_id)
    return Release(
        checkpoint=checkpoint, vocabulary=vocabulary, tokenizer=kept_files(source, vocabulary)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """What a directory for transformers is made of.

    Attributes:
      config: the content of config.json.
      tensors: of the weights, by name.
      files: the tokenizer's and others, by their paths.
    """

    config: dict[str, Any]
    tensors: dict[str, LazyArray]
    files: dict[str, bytes]


def export_of(
    experiment: Experiment,
    params: Mapping[str, LazyArray],
    vocabulary: Vocabulary,
    *,
    part: Part = "model",
    cast: Callable[[LazyArray], LazyArray],
    model_type: str | None,
    kept: Mapping[str, bytes],
    sentences: SentenceEncoder | None = None,
    where: object,
) -> Export:
    """An encoder and its head, as transformers has them.

    Args:
      experiment: of the checkpoint.
      params: the learner's, by path.
      vocabulary: that it was trained with.
      part: the model, or the generator that it was trained against.
      cast: gives its arrays the dtype that they shall have.
      model_type: that it had where it was imported from, if it was.
      kept: files from there, by name.
      sentences: how sentence-transformers makes vectors of it, where that shall load it; there is
        no head then.
      where: the checkpoint, for messages.

    Raises:
      InputError: transformers has no such model, or the parameters are not those of the config.
    """
    if part == "generator":
        generator, head, arrays = _generator(experiment, params, where=where)
        model, family = _with_family(generator, where=where)
    else:
        model, family = _with_family(experiment.model, where=where)
        head, arrays = head_of(experiment), _own(experiment, params, where=where)
    if sentences is not None:
        head = "none"
    if head not in family.heads:
        _logger.warning("%s: transformers has no such head, %s; it is left out", where, head)
        head = "none"
    if head == "none":
        arrays = {path: array for path, array in arrays.items() if not path.startswith(HEAD)}
    arrays = {path: cast(array) for path, array in arrays.items()}
    if family.fitted is not None:
        model, arrays = family.fitted(model, arrays)
    config = family.from_model(model, head, model_type)
    tensors = encoder_tensors(
        family, model, head, arrays, model_type=config["model_type"], where=where
    )
    dtype = common_dtype(arrays.values())
    files: dict[str, bytes] = {}
    if isinstance(vocabulary, Tokenizer):
        longest = model.max_positions - model.first_position
        files = tokenizer_files(vocabulary, kept, max_length=longest)
    else:
        _logger.warning(
            "%s: its vocabulary is a %s, of which no tokenizer of transformers is written",
            where,
            type(vocabulary).__name__,
        )
    if sentences is not None:
        files |= sentence_files(sentences, d_model=model.d_model)
    return Export(
        config={**config, "dtype": dtype, "torch_dtype": dtype}, tensors=tensors, files=files
    )


def _with_family(model: ModelConfig, *, where: object) -> tuple[EncoderConfig, Family]:
    for family in FAMILIES:
        if isinstance(model, EncoderConfig) and isinstance(model, family.config):
            return model, family
    raise InputError(f"checkpoint {where}: transformers has no {type(model).__name__}")


def head_of(experiment: Experiment) -> Head:
    """The kind of the head that the objective keeps at objective/head."""
    learner = learner_of(experiment)
    head = getattr(bind(learner.graphdef, learner.seen).objective, "head", None)
    if isinstance(head, MaskedLMHead):
        return "masked_lm"
    if isinstance(head, ElectraRtdHead):
        return "electra_rtd"
    return "deberta_rtd" if isinstance(head, DebertaRtdHead) else "none"


def _generator(
    experiment: Experiment, params: Mapping[str, LazyArray], *, where: object
) -> tuple[EncoderConfig, Head, dict[str, LazyArray]]:
    """The generator of replaced-token detection as a model with its head."""
    objective = experiment.objective
    if not isinstance(objective, Electra):
        raise InputError(
            f"checkpoint {where}: only objective Electra has a generator, and this one is "
            f"{type(objective).__name__}"
        )
    seen = seen_params(experiment, params, where=where)
    arrays = _moved(seen, "objective/generator/", MODEL)
    arrays |= _moved(seen, "objective/generator_head/", HEAD)
    return objective.generator, "masked_lm", arrays


def _own(
    experiment: Experiment, params: Mapping[str, LazyArray], *, where: object
) -> dict[str, LazyArray]:
    """The model and its head."""
    seen = seen_params(experiment, params, where=where)
    return _moved(seen, MODEL, MODEL) | _moved(seen, HEAD, HEAD)


def seen_params(
    experiment: Experiment, params: Mapping[str, LazyArray], *, where: object
) -> dict[str, LazyArray]:
    """A checkpoint's parameters as the modules read them, by path.

    Raises:
      InputError: they are not those of the config.
    """
    try:
        return views.read_lazily(views_of(experiment.model, experiment.objective), params)
    except ValueError as error:
        raise InputError(
            f"checkpoint {where}: not the parameters of its config: {error}"
        ) from error


def _moved(params: Mapping[str, LazyArray], old: str, new: str) -> dict[str, LazyArray]:
    """The arrays below one path, at another."""
    return {
        new + path.removeprefix(old): array
        for path, array in params.items()
        if path.startswith(old)
    }
