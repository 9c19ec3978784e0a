"""Replaced-token detection: ELECTRA, and DeBERTaV3 with its gradient-disentangled sharing.

Clark et al. 2020, arXiv:2003.10555; He et al. 2021, arXiv:2111.09543. A small generator is a masked
language model. Tokens drawn from it stand at the masked positions of the text that the
discriminator reads, which says of every token whether it was replaced:

    loss = L_G (over the masked tokens) + 50 * L_D (over all tokens)

The model of the experiment is the discriminator; the generator belongs to the objective. A drawn
token that happens to be the original one is no replacement. What the two embeddings E_G and E_D
have to do with each other (`sharing`):

    es     E_D is E_G: both losses move it
    nes    nothing
    gdes   E_D = stop_gradient(E_G) + delta, which begins as zero: L_D moves delta alone. Delta is
           stored where the model's own tables are, and `export` adds the two up

It goes for the tables of tokens and, where both have one, of positions. Decoupled, a step makes two
updates: the generator's, then that of the discriminator, which reads the E_G just updated, while
the replaced tokens are drawn from the generator as it was (microsoft/DeBERTa rtd_task.py). Each has
an optimizer state and clips its own gradient; so the weight of L_D hardly matters there.

    ELECTRA     Electra(generator=..., sharing="es")
    DeBERTaV3   Electra(generator=..., sharing="gdes", decoupled=True, head="deberta",
                        mask_fraction=1.0)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite import trees
from t5x_lite.errors import InputError
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderConfig, EncoderModel, document_positions
from t5x_lite.nn.dropout import split_key
from t5x_lite.nn.heads import DebertaRtdHead, ElectraRtdHead
from t5x_lite.objectives import masking
from t5x_lite.objectives.base import Loss, Objective, Phase, Term
from t5x_lite.objectives.masked_lm import (
    Masks,
    check_batch,
    features,
    masked_lm_head,
    real_tokens,
    require_encoder,
    sums,
)
from t5x_lite.objectives.roc import Roc
from t5x_lite.optim.config import Optimizer
from t5x_lite.types import Array, Batch, Key, Params

Sharing = Literal["es", "nes", "gdes"]
DetectionHead = Literal["electra", "deberta"]
Tables = Mapping[str, Array]

GENERATOR, DISCRIMINATOR = "generator", "discriminator"
_DRAWN = "drawn_tokens"
"""The feature in which the generator's phase leaves the text with its tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Electra(Masks, Objective):
    """The generator's and the discriminator's losses; the fields of `Masks` and these.

    Attributes:
      generator: config of the generator, of any size; its tables are those of the model's shape
        where they are shared.
      sharing: of the tables of tokens and of positions: "es", "nes" or "gdes"; each tower has token
        types of its own, which google-research/electra shares, too.
      decoupled: whether generator and discriminator are updated one after the other.
      head: the discriminator's: "electra" or "deberta".
      discriminator_weight: lambda, the weight of L_D.
      temperature: of the draw.
      discriminator_optimizer: of the decoupled discriminator; None is the experiment's.
      mask_fraction: of the masked tokens, those that the generator reads as [MASK]; the rest stay.
    """

    generator: EncoderConfig
    sharing: Sharing = "es"
    decoupled: bool = False
    head: DetectionHead = "electra"
    discriminator_weight: float = 50.0
    temperature: float = 1.0
    discriminator_optimizer: Optimizer | None = None
    mask_fraction: float = 0.85
    random_fraction: float = 0.0

    layouts: ClassVar[tuple[str, ...]] = ("encoder",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("sharing", Sharing), ("head", DetectionHead)):
            if getattr(self, name) not in get_args(choices):
                raise InputError(
                    f"objective.{name} must be one of {get_args(choices)}: "
                    f"got {getattr(self, name)!r}"
                )
        if self.decoupled and self.sharing == "es":
            raise InputError(
                "objective.decoupled goes with sharing gdes or nes: tables that both losses move "
                "have one update"
            )
        if self.discriminator_optimizer is not None and not self.decoupled:
            raise InputError(
                "objective.discriminator_optimizer needs --objective.decoupled True: a joint step "
                "has one optimizer"
            )
        if self.discriminator_weight <= 0.0 or self.temperature <= 0.0:
            raise InputError(
                "objective.discriminator_weight and objective.temperature must be above 0: "
                f"got {self.discriminator_weight} and {self.temperature}"
            )

    def phases(self) -> tuple[Phase, ...]:
        """None; decoupled, the generator's and the discriminator's."""
        if not self.decoupled:
            return ()
        return (
            Phase(name=GENERATOR, trains=r"objective/(generator|generator_head)/.*"),
            Phase(
                name=DISCRIMINATOR,
                trains=r"(model|objective/head)/.*",
                optimizer=self.discriminator_optimizer,
            ),
        )

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ElectraLoss":
        """Makes the loss module, whose parameters are the generator and both heads."""
        self.check_vocabulary(model)
        if not isinstance(model, EncoderConfig):
            raise InputError(f"Electra needs an encoder, not {type(model).__name__}")
        names = ("vocab_size", "pad_id")
        names += () if self.sharing == "nes" else ("table_size", "max_positions", "first_position")
        for name in names:
            theirs, ours = getattr(self.generator, name), getattr(model, name)
            if theirs != ours:
                raise InputError(
                    f"the generator's {name} must be the model's for sharing {self.sharing}: "
                    f"objective.generator has {theirs}, model has {ours} (table_size is "
                    "embedding_size, or d_model where that is None)"
                )
        return ElectraLoss(self, model, rngs=rngs)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """FLOPs of both losses of one row: the generator and its head, the model and its head."""
        (length,) = shapes["encoder_input_tokens"]
        head = 2 * length * model.d_model * (model.d_model + 1)
        return self.masked_lm_flops(self.generator, length) + model.text_flops(length) + head

    def prepare(self, model: Any) -> None:
        """Zeroes the model's own tables where they hold the difference from the generator's."""
        if self.sharing == "gdes":
            for name in self.shared_tables(model.config):
                table = getattr(model.embedding, name)
                zeros = jnp.zeros_like(table[...])
                setattr(model.embedding, name, nnx.Param(zeros, **_logical(table)))

    def export(self, params: Params) -> Params:
        """The discriminator with the tables that it reads."""
        if self.sharing != "gdes":
            return params["model"]
        own = params["model"]["embedding"]
        theirs = params["objective"]["generator"]["embedding"]
        summed = {n: own[n] + theirs[n] for n in ("token", "position") if n in own and n in theirs}
        return trees.overlaid(params["model"], {"embedding": summed})

    @property
    def stores_difference(self) -> bool:
        """Whether the tables hold the difference from the generator's."""
        return self.sharing == "gdes"

    def reads_as_stored(self, saved: Objective, given: Params) -> bool:
        """Whether both store differences, and what they are differences from comes along."""
        if not self.stores_difference:
            return super().reads_as_stored(saved, given)
        tables = given.get("objective", {}).get("generator", {}).get("embedding", {})
        return saved.stores_difference and "token" in tables

    def absorb(self, params: Params, model: Params) -> Params:
        """The parameters with some of the discriminator's, of the tables that it reads."""
        if not self.stores_difference:
            return super().absorb(params, model)
        theirs = params["objective"]["generator"]["embedding"]
        given = model.get("embedding", {})
        subtract = jax.jit(jnp.subtract)  # of arrays that other processes have parts of, too
        own = {
            name: subtract(table, theirs[name])
            for name, table in given.items()
            if name in ("token", "position") and name in theirs
        }
        return super().absorb(params, trees.overlaid(model, {"embedding": {**given, **own}}))

    def shared_tables(self, model: EncoderConfig) -> tuple[str, ...]:
        """The tables that sharing is about, by name."""
        both = model.position_rows and self.generator.position_rows
        return ("token", "position") if both else ("token",)


@dataclasses.dataclass(frozen=True)
class _Elsewhere:
    """Stands in a module for a table that another one has and every call must be given."""

    def __getitem__(self, _: Any) -> Array:
        return jnp.zeros(())


class ElectraLoss(nnx.Module):
    """Sums of the generator's and the discriminator's losses.

    Args:
      config: the objective.
      model: of the discriminator.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Electra, model: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.shared = config.shared_tables(model)
        self.generator: Any = config.generator.build(rngs=rngs)
        require_encoder(config, self.generator)
        if config.sharing == "es":
            for name in self.shared:
                delattr(self.generator.embedding, name)
                setattr(self.generator.embedding, name, _Elsewhere())
        self.generator_head = masked_lm_head(config.generator, rngs=rngs)
        options: Any = {"activation": model.activation, "stddev": model.initializer_stddev}
        self.head: ElectraRtdHead | DebertaRtdHead
        if config.head == "electra":
            self.head = ElectraRtdHead(model.d_model, **options, rngs=rngs)
        else:
            epsilon = model.norm_epsilon
            self.head = DebertaRtdHead(model.d_model, **options, norm_epsilon=epsilon, rngs=rngs)

    def __call__(
        self,
        model: EncoderModel,
        batch: Batch,
        *,
        key: Key | None = None,
        phase: str | None = None,
    ) -> Loss:
        """The loss of a batch of the layout "encoder", or of one of the phases.

        Raises:
          InputError: the features are those of another layout.
        """
        check_batch(self.config, batch)
        noise, dropout = masking.noise_and_dropout(key)
        generator_key, discriminator_key = split_key(dropout, 2)
        if phase == DISCRIMINATOR:
            return self._discriminate(model, batch, batch[_DRAWN], key=discriminator_key)
        loss = self._generate(model, batch, noise=noise, key=generator_key)
        if phase == GENERATOR:
            return loss
        other = self._discriminate(model, batch, loss.features[_DRAWN], key=discriminator_key)
        return Loss(terms={**loss.terms, **other.terms}, metrics={**loss.metrics, **other.metrics})

    def tables(self, model: EncoderModel) -> tuple[Tables, Tables]:
        """What the generator reads in place of its own tables, and what the discriminator reads."""
        own = {name: table for name, table in model.tables().items() if name in self.shared}
        if self.config.sharing == "es":
            return own, {}
        if self.config.sharing == "nes":
            return {}, {}
        theirs = self.generator.tables()
        return {}, {n: jax.lax.stop_gradient(theirs[n]) + delta for n, delta in own.items()}

    def _generate(self, model: EncoderModel, batch: Batch, *, noise: Key, key: Key | None) -> Loss:
        """L_G, and the text in which its tokens stand."""
        config, tokens = self.config, batch["encoder_input_tokens"]
        mask_key, draw_key = jax.random.split(noise)
        inputs, slots = config.draw(
            batch,
            vocab_size=config.generator.vocab_size,
            pad_id=config.generator.pad_id,
            key=mask_key,
        )
        tables = self.tables(model)[0]
        hidden = self.generator.masked_lm_states(
            inputs, **features(batch), tables=tables or None, key=key
        )
        table = {**self.generator.tables(), **tables}["token"]
        logits = self.generator_head(masking.at_slots(hidden, slots), table)
        total, correct, weight = sums(logits, masking.at_slots(tokens, slots), slots.used)
        drawn = draw(jax.lax.stop_gradient(logits), draw_key, temperature=config.temperature)
        return Loss(
            terms={GENERATOR: Term(total, weight)},
            metrics={"token_accuracy": (correct, weight), "cross_entropy": (total, weight)},
            features={_DRAWN: masking.put_at_slots(tokens, slots, drawn)},
        )

    def _discriminate(
        self, model: EncoderModel, batch: Batch, drawn: Int[Array, "B S"], *, key: Key | None
    ) -> Loss:
        """L_D: every token that is no padding, replaced or not."""
        tables = self.tables(model)[1]
        hidden = model(drawn, **features(batch), tables=tables or None, key=key)
        if isinstance(self.head, DebertaRtdHead):
            logits = self.head(hidden, positions=_positions(batch))
        else:
            logits = self.head(hidden)
        replaced = drawn != batch["encoder_input_tokens"]
        weights = real_tokens(batch, pad_id=model.config.pad_id).astype(jnp.float32)
        losses = optax.sigmoid_binary_cross_entropy(logits, replaced.astype(jnp.float32))
        total, weight = jnp.sum(losses * weights), jnp.sum(weights)
        right = ((logits > 0) == replaced).astype(jnp.float32) * weights
        fakes = replaced.astype(jnp.float32) * weights
        # What is measured has no key; a training step is spared the histograms.
        measured = {} if key is not None else {"detection_auc": Roc.of(logits, replaced, weights)}
        return Loss(
            terms={DISCRIMINATOR: Term(total, weight, self.config.discriminator_weight)},
            metrics={
                "detection_loss": (total, weight),
                "detection_accuracy": (jnp.sum(right), weight),
                "detection_recall": (jnp.sum(right * fakes), jnp.sum(fakes)),
                "replaced": (jnp.sum(fakes), weight),
                **measured,
            },
        )


def draw(logits: Float[Array, "*batch V"], key: Key, *, temperature: float) -> Int[Array, "*batch"]:
    """A token of probability softmax(logits / temperature), by Gumbel noise in float32."""
    return jax.random.categorical(key, logits.astype(jnp.float32) / temperature).astype(jnp.int32)


def _positions(batch: Batch) -> Int[Array, "B S"] | None:
    """Positions within documents; None where a row is one document."""
    if "encoder_positions" in batch or "encoder_segment_ids" not in batch:
        return batch.get("encoder_positions")
    return document_positions(batch["encoder_segment_ids"])


def _logical(variable: Any) -> dict[str, Any]:
    return {"logical": variable.get_metadata()["logical"]}
