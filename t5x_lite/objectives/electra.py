"""Replaced token detection: ELECTRA, and DeBERTaV3 with gradient-disentangled embedding sharing.

Clark et al. 2020, arXiv:2003.10555; He et al. 2021, arXiv:2111.09543. A small generator is a masked
language model. Tokens sampled from the generator replace the masked tokens in the discriminator's
input. The discriminator classifies every token as replaced or original:

    loss = L_G (over the masked tokens) + 50 * L_D (over all tokens)

The model of the experiment is the discriminator; the generator belongs to the objective. A sampled
token that equals the original token does not count as replaced. The field `sharing` relates the
embeddings of generator and discriminator, E_G and E_D:

    es     E_D is E_G: both losses update it
    nes    E_D and E_G are separate
    gdes   E_D = stop_gradient(E_G) + delta; delta starts as zero, and L_D updates only delta. Delta
           is stored at the paths of the model's embedding, and an export holds the sum

The token embeddings are shared and, if both models have them, the position embeddings. ELECTRA
shares the complete embedding, including token types and the layer norm (google-research/electra
run_pretraining.py, one variable scope for both); DeBERTaV3 shares neither of these.

DeBERTaV3's step makes two updates, which is the default of nes and gdes: first the generator's,
then the discriminator's. The discriminator reads the updated E_G, but its replaced tokens are
sampled from the generator before the update (microsoft/DeBERTa rtd_task.py). Each update has its
own optimizer state and clips its own gradient, so the weight of L_D hardly matters.
`decoupled=False` is the joint form: one update by the gradient of L_G + 50 * L_D, with one
clipping. ES is always joint.

    ELECTRA     Electra(generator=..., sharing="es")
    DeBERTaV3   Electra(generator=..., sharing="gdes", head="deberta", mask_fraction=1.0)
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above
from t5x_lite.core.tied_parameters import Difference, Same, View
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Encoder, Layout
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.models.heads import Head, HeadModules, Mlm, Rtd, RtdKind
from t5x_lite.nn.attention_pattern import document_positions
from t5x_lite.nn.dense import split_key
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.base import Loss, Objective, Phase, Roc, Term
from t5x_lite.objectives.masked_lm import (
    Masks,
    check_batch,
    features,
    real_tokens,
    sums,
)
from t5x_lite.optim.config import Optimizer

Sharing = Literal["es", "nes", "gdes"]

GENERATOR, DISCRIMINATOR = "generator", "discriminator"
_DRAWN = "drawn_tokens"
"""Feature with the text that contains the generator's sampled tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Electra(Masks, Objective):
    """Replaced token detection: losses of the generator and of the discriminator.

    The objective also has the fields of `Masks`.

    Attributes:
      generator: config of the generator, of any size; shared embeddings have the model's shape.
      sharing: sharing of the embeddings of generator and model: "es" (shared), "nes" (separate) or
        "gdes" (gradient-disentangled).
      share_embedding_norm: True if "es" also shares the embeddings' layer norm and token types;
        None is True with the head "electra", as in the original, and else False.
      decoupled: True if generator and discriminator are updated one after the other, each by its
        own loss; False updates both by the sum. None is False for "es", else True.
      head: kind of the discriminator's head: "electra" or "deberta".
      discriminator_weight: weight lambda of the discriminator's loss L_D.
      temperature: temperature of the generator's sampling.
      discriminator_optimizer: optimizer of the decoupled discriminator; None is the experiment's.
      mask_fraction: fraction of the masked tokens that the generator reads as [MASK]; other masked
        tokens are unchanged.
    """

    generator: EncoderConfig
    sharing: Sharing = "es"
    share_embedding_norm: bool | None = None
    decoupled: bool | None = None
    head: RtdKind = "electra"
    discriminator_weight: Annotated[float, Above(0)] = 50.0
    temperature: Annotated[float, Above(0)] = 1.0
    discriminator_optimizer: Optimizer | None = None
    mask_fraction: float = 0.85
    random_fraction: float = 0.0

    layouts: ClassVar[tuple[type[Layout], ...]] = (Encoder,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoupled and self.sharing == "es":
            raise InputError(
                "objective.decoupled requires objective.sharing gdes or nes, but "
                "objective.sharing is es, so that both losses train the same embedding"
            )
        if self.share_embedding_norm and self.sharing != "es":
            raise InputError(
                "objective.share_embedding_norm requires objective.sharing es, but "
                f"objective.sharing is {self.sharing}"
            )
        if self.discriminator_optimizer is not None and not self.two_updates:
            raise InputError(
                "objective.discriminator_optimizer requires separate updates of generator and "
                "discriminator, but this config has a joint update; set objective.sharing to nes "
                "or gdes, without --objective.decoupled False"
            )

    def resolved(self, kept: Mapping[str, Head]) -> "Electra":
        shares, two = self._shares_norm, self.two_updates
        return dataclasses.replace(self, share_embedding_norm=shares, decoupled=two)

    def models(self) -> Mapping[str, ModelConfig]:
        return {"generator": self.generator}

    @property
    def two_updates(self) -> bool:
        """True if a step updates first the generator and then the discriminator."""
        return self.sharing != "es" if self.decoupled is None else self.decoupled

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase for the generator and one for the discriminator; () for a joint update."""
        if not self.two_updates:
            return ()
        return (
            Phase(name=GENERATOR, trains=r"objective/(generator|generator_head)/.*"),
            Phase(
                name=DISCRIMINATOR,
                trains=r"(model|heads/rtd|adapters)/.*",
                optimizer=self.discriminator_optimizer,
            ),
        )

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ElectraLoss":
        """Build the loss module; its parameters are the generator and the generator's head."""
        self.check_vocabulary(model)
        if not isinstance(model, EncoderConfig):
            raise InputError(
                f"objective Electra requires an encoder, but the model is {type(model).__name__}"
            )
        names = ("vocab_size", "pad_id")
        names += () if self.sharing == "nes" else ("table_size", "max_positions", "first_position")
        remedy = " (table_size is embedding_size, or by default d_model)"
        self._check_alike(model, names, remedy=remedy)
        if self._shares_norm:
            remedy = "; set --objective.share-embedding-norm False to share only the embeddings"
            self._check_alike(model, ("token_types", "embedding_norm_size"), remedy=remedy)
        return ElectraLoss(self, rngs=rngs)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """Return the discriminator's head "rtd"; the objective itself has the generator's head."""
        return (Rtd(kind=self.head),)

    def _check_alike(self, model: EncoderConfig, names: tuple[str, ...], *, remedy: str) -> None:
        for name in names:
            theirs, ours = getattr(self.generator, name), getattr(model, name)
            if theirs != ours:
                raise InputError(
                    f"objective.sharing {self.sharing} requires equal {name} of generator and "
                    f"model, but objective.generator has {theirs} and model has {ours}{remedy}"
                )

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """Return the FLOPs for one row: generator, model, and their heads."""
        (length,) = shapes["encoder_input_tokens"]
        head = 2 * length * model.d_model * (model.d_model + 1)
        return self.masked_lm_flops(self.generator, length) + model.text_flops(length) + head

    def views(self, model: ModelConfig, prefix: str) -> tuple[View, ...]:
        """Return the rules that compute the shared embeddings of generator and model."""
        ours, theirs = "model/embedding/", f"{prefix}generator/embedding/"
        shared = self._shared(model)
        if self.sharing == "es":
            return tuple(Same(theirs + name, ours + name) for name in shared)
        if self.sharing == "gdes":
            return tuple(Difference(ours + name, theirs + name) for name in shared)
        return ()

    def _shared(self, model: Any) -> list[str]:
        names = ["token"]
        if model.position_rows and self.generator.position_rows:
            names.append("position")
        if self._shares_norm:
            names.append("norm/*")
            if model.token_types:
                names.append("token_type")
        return names

    @property
    def _shares_norm(self) -> bool:
        if self.share_embedding_norm is None:
            return self.sharing == "es" and self.head == "electra"
        return self.share_embedding_norm


class ElectraLoss(nnx.Module):
    """Loss module that computes the losses of generator and discriminator.

    Args:
      config: the objective.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Electra, *, rngs: nnx.Rngs):
        self.config = config
        self.generator: Any = config.generator.build(rngs=rngs)
        config.check_model(self.generator)
        self.generator_head = Mlm().build(config.generator, rngs=rngs)

    def __call__(
        self,
        model: EncoderModel,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        phase: str | None = None,
    ) -> Loss:
        """Return the loss of a batch, or of one phase (generator or discriminator)."""
        check_batch(self.config, batch)
        noise, dropout = masked_lm.noise_and_dropout(key)
        generator_key, discriminator_key = split_key(dropout, 2)
        if phase == DISCRIMINATOR:
            return self._discriminate(model, heads, batch, batch[_DRAWN], key=discriminator_key)
        loss = self._generate(batch, noise=noise, key=generator_key)
        if phase == GENERATOR:
            return loss
        other = self._discriminate(
            model, heads, batch, loss.features[_DRAWN], key=discriminator_key
        )
        return Loss(terms={**loss.terms, **other.terms}, metrics={**loss.metrics, **other.metrics})

    def _generate(self, batch: Batch, *, noise: Key, key: Key | None) -> Loss:
        """Return the generator's loss L_G, and the text with sampled tokens."""
        config, tokens = self.config, batch["encoder_input_tokens"]
        mask_key, draw_key = jax.random.split(noise)
        inputs, slots = config.draw(
            batch,
            vocab_size=config.generator.vocab_size,
            pad_id=config.generator.pad_id,
            key=mask_key,
        )
        hidden = self.generator.masked_lm_states(inputs, **features(batch), key=key)
        table = self.generator.tables()["token"]
        logits = self.generator_head(masked_lm.at_slots(hidden, slots), table)
        total, correct, weight = sums(logits, masked_lm.at_slots(tokens, slots), slots.used)
        drawn = draw(jax.lax.stop_gradient(logits), draw_key, temperature=config.temperature)
        return Loss(
            terms={GENERATOR: Term(total, weight)},
            metrics={"token_accuracy": (correct, weight), "cross_entropy": (total, weight)},
            features={_DRAWN: masked_lm.put_at_slots(tokens, slots, drawn)},
        )

    def _discriminate(
        self,
        model: EncoderModel,
        heads: HeadModules,
        batch: Batch,
        drawn: Int[Array, "B S"],
        *,
        key: Key | None,
    ) -> Loss:
        """Return the discriminator's loss L_D over all tokens that are not padding."""
        hidden = model(drawn, **features(batch), key=key)
        head = heads["rtd"]
        deberta = self.config.head == "deberta"
        logits = head(hidden, positions=_positions(batch)) if deberta else head(hidden)
        replaced = drawn != batch["encoder_input_tokens"]
        weights = real_tokens(batch, pad_id=model.config.pad_id).astype(jnp.float32)
        losses = optax.sigmoid_binary_cross_entropy(logits, replaced.astype(jnp.float32))
        total, weight = jnp.sum(losses * weights), jnp.sum(weights)
        # Evaluation has no key; training steps skip the histograms.
        measured = {} if key is not None else {"detection_auc": Roc.of(logits, replaced, weights)}
        return Loss(
            terms={DISCRIMINATOR: Term(total, weight, self.config.discriminator_weight)},
            metrics={
                "detection_loss": (total, weight),
                **detections(logits, replaced, weights),
                **measured,
            },
        )


def detections(
    logits: Float[Array, "B S"], replaced: Bool[Array, "B S"], weights: Float[Array, "B S"]
) -> dict[str, tuple[Array, Array]]:
    """Return metrics of replaced token detection: accuracy, recall, fraction of replaced tokens.

    A logit of 0 counts as half correct in the accuracy.
    """
    sides = 0.5 * jnp.sign(logits) * jnp.where(replaced, 1.0, -1.0)
    right, weight = (0.5 + sides) * weights, jnp.sum(weights)
    fakes = replaced.astype(jnp.float32) * weights
    return {
        "detection_accuracy": (jnp.sum(right), weight),
        "detection_recall": (jnp.sum(right * fakes), jnp.sum(fakes)),
        "replaced": (jnp.sum(fakes), weight),
    }


def draw(logits: Float[Array, "*batch V"], key: Key, *, temperature: float) -> Int[Array, "*batch"]:
    """Sample a token from softmax(logits / temperature), with Gumbel noise in float32."""
    return jax.random.categorical(key, logits.astype(jnp.float32) / temperature).astype(jnp.int32)


def _positions(batch: Batch) -> Int[Array, "B S"] | None:
    """Return positions within documents; None if each row is one document."""
    if "encoder_positions" in batch or "encoder_segment_ids" not in batch:
        return batch.get("encoder_positions")
    return document_positions(batch["encoder_segment_ids"])
