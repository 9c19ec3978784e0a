"""Condenser, and coCondenser on spans of documents: pretraining of [CLS] vectors.

Condenser: a head predicts masked tokens from early states and the last [CLS] state.

Gao & Callan 2021, arXiv:2104.08253, and the code of luyug/Condenser. In a BERT, [CLS] attends like
any other token in the middle layers, and broadly only in the last layers. The head reads the last
[CLS] state, and the other states from a middle layer. Later layers can therefore pass information
about the text to the head only through [CLS]:

    early = states after layer `skip_from`, late = states after the last layer
    U_0   = late_CLS, early_1, early_2, ...         U_j = layer_j(U_{j-1}),  j = 1 .. head_layers
    loss  = mean of CE(mlm(U_m), x)  +  mean of CE(mlm(late), x)          over the masked tokens

    [CLS] a b [SEP],   skip_from 1 of 3 layers:
    layer 3   c a3 b3 s3        -> loss of the late states
    layer 1   - a1 b1 s1
    the head reads  c a1 b1 s1  -> loss of the head

Both losses share one masked-LM head, which reads only the masked positions. The late loss keeps the
backbone a language model while the head's layers are new. Fine-tuning starts from the model. The
head's layers and the masked-LM head are also saved, so that pretraining can resume. Rows may be
packed: each document has its own [CLS], and attends only to itself.

Whole words are masked as in `Masks`, but special tokens are not counted, as in Condenser's code.
Condenser's code takes two random crops of a long text, one for the tokens and another for the masks
of words (data.py); here word ids belong to the tokens.

coCondenser: Condenser on spans of documents, with a contrastive loss of their [CLS] states.

Gao & Callan 2022, arXiv:2108.05540, and the code of luyug/Condenser. A row has two spans of one
document (`layouts.Spans`). Each span has Condenser's losses. Its last [CLS] state must also be
closer to the other span of its document than to all other spans of the batch:

    C = [CLS] states of the 2 B spans, float32, without norm and without temperature
    S = C C^T,  S_ii = -inf;   contrastive loss = mean_i ( logsumexp_j S_ij - S_{i, other span} )

    C = [1 0] [1 1] [0 1] [0 2], two documents:   S =  -  1  0  0       losses .551
                                                       1  -  1  2             1.551
                                                       0  1  -  2              .408
                                                       0  2  2  -              .759

The loss compares the spans of the whole batch, on all devices and in all microbatches: it has two
stages (`objectives.base`), and microbatches of documents are the paper's gradient caching. Each
term is a sum over the batch, divided by its own weight, so microbatches change no weight. In the
cached step of luyug/Condenser, the masked-LM terms weigh twice as much as without a cache, because
its chunks count spans and its batch counts documents (modeling.py:227). A span with the same tokens
as either span of the pair is masked out of the negatives; in luyug/Condenser it is a negative.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Whole
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Encoder, Layout, Spans
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import Bert, BertConfig, EncoderConfig
from t5x_lite.models.heads import Head, HeadModules
from t5x_lite.models.pretraining_heads import MaskedLMHead, Mlm
from t5x_lite.models.vector_heads import Dense, dense_of
from t5x_lite.nn.bind import stacked
from t5x_lite.nn.dropout import split_key
from t5x_lite.nn.layers import PostNormConfig, PostNormLayer
from t5x_lite.nn.stack import scan_layers
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.likelihood import correct, cross_entropy
from t5x_lite.objectives.masked_lm import Masks, check_batch, features, sums
from t5x_lite.objectives.retromae import Documents

FAN_IN_BELOW = 256
"""Width below which initial kernels have deviation 1 / sqrt(width), because 0.02 is too small."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condenser(Masks, Objective):
    """Masked language modeling through a head on early hidden states (Condenser).

    The objective also has the fields of `Masks`.

    Attributes:
      whole_word: True to mask the tokens of a word together.
      head_layers: number of layers of the head; the paper has 2.
      skip_from: number of the layer that the head reads, with 0 for the embeddings; None is the
        middle.
      late_mlm: True to add the loss of the last hidden states, which is logged in any case.
    """

    whole_word: bool = True
    head_layers: Count = 2
    skip_from: Whole | None = None
    late_mlm: bool = True

    layouts: ClassVar[tuple[type[Layout], ...]] = (Encoder,)

    def skipped(self, model: EncoderConfig) -> int:
        """Return the number of the layer that the Condenser head reads."""
        return model.num_layers // 2 if self.skip_from is None else self.skip_from

    def counted(self, batch: Batch, *, pad_id: int) -> Bool[Array, "B S"]:
        """Return True for tokens of words; special tokens are not counted."""
        return batch["encoder_word_ids"] > 0

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """Return the FLOPs for one row: encoder, head layers, and twice the masked-LM head."""
        *texts, length = shapes["encoder_input_tokens"]
        slots = masked_lm.most(length, self.ratio)
        flops = model.text_flops(length) + self.head_layers * model.layer_flops(length)
        flops += 2 * model.masked_lm_head_flops(slots)
        return flops * (texts[0] if texts else 1)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "CondenserLoss":
        """Build the loss module; its parameters are the layers of the Condenser head."""
        return CondenserLoss(self, self.checked(model), rngs=rngs)

    def checked(self, model: ModelConfig) -> BertConfig:
        """Return the model's config if the objective supports it.

        Raises:
          InputError: if the model is not a BERT, or has fewer layers than `skip_from`.
        """
        self.check_vocabulary(model)
        if not isinstance(model, BertConfig):
            raise InputError(
                f"{type(self).__name__} needs a BertConfig, but the model is {type(model).__name__}"
                "; the Condenser head has no relative positions, which a DeBERTa needs"
            )
        if self.skipped(model) > model.num_layers:
            raise InputError(
                f"objective.skip_from {self.skip_from} must be at most model.num_layers, "
                f"{model.num_layers}"
            )
        return model

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """Return the heads "mlm" and "dense"; "dense" pools by "cls", because [CLS] is trained."""
        return (Mlm(), dataclasses.replace(dense_of(kept) or Dense(), pooling="cls"))

    def anew(self, earlier: Objective) -> str:
        """Return a warning if the checkpoint's Condenser head is replaced by a new head, or ""."""
        if not isinstance(earlier, Condenser):
            return ""
        return (
            "the Condenser head is reinitialized, but the model was trained with another head, and"
            " a new head damages it; set the same objective.head_layers and keep the head"
        )


class CondenserLoss(nnx.Module):
    """Loss module that computes the losses of the Condenser head and of the last hidden states.

    Args:
      config: the objective.
      model: config of the encoder.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Condenser, model: BertConfig, *, rngs: nnx.Rngs):
        self.config = config
        layer = head_layer(model)
        self.condenser = stacked(
            lambda rngs: PostNormLayer(layer, rngs=rngs), rngs, num=config.head_layers
        )

    def __call__(
        self, model: Bert, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_batch(self.config, batch)
        return self.condensed(model, heads, batch, key=key)[0]

    def condensed(
        self, model: Bert, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> tuple[Loss, Float[Array, "B D"]]:
        """Return the loss, and the last hidden state of each row's first token.

        Args:
          model: encoder.
          heads: heads by name; "mlm" is read.
          batch: features of the layout `Encoder`.
          key: random key of masks and dropout; None gives fixed masks and no dropout.
        """
        config, tokens = self.config, batch["encoder_input_tokens"]
        noise, dropout = masked_lm.noise_and_dropout(key)
        encoder_key, head_key = split_key(dropout, 2)
        vocabulary = {"vocab_size": model.config.vocab_size, "pad_id": model.config.pad_id}
        inputs, slots = config.draw(batch, **vocabulary, key=noise)
        late, states = self.states(model, inputs, batch, keys=(encoder_key, head_key))
        mlm: MaskedLMHead = heads["mlm"]
        table, targets = model.tables()["token"], masked_lm.at_slots(tokens, slots)

        def predicted(states: Array) -> tuple[Array, Array, Array]:
            return sums(mlm(masked_lm.at_slots(states, slots), table), targets, slots.used)

        total, correct, weight = predicted(states)
        late_total, late_correct, _ = predicted(late)
        terms = {"head": Term(total, weight)}
        if config.late_mlm:
            terms["late"] = Term(late_total, weight)
        metrics = {
            "token_accuracy": (correct, weight),
            "cross_entropy": (total, weight),
            "late_token_accuracy": (late_correct, weight),
            "late_cross_entropy": (late_total, weight),
        }
        return Loss(terms=terms, metrics=metrics), late[:, 0].astype(jnp.float32)

    def states(
        self,
        model: Bert,
        inputs: Array,
        batch: Batch,
        *,
        keys: tuple[Key | None, Key | None] = (None, None),
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B S D"]]:
        """Return the last hidden states of the encoder and of the Condenser head.

        Args:
          model: encoder.
          inputs: masked tokens.
          batch: batch with the unmasked tokens.
          keys: random keys of the dropout in the encoder and in the head.
        """
        embedding_key, layers_key = split_key(keys[0], 2)
        x, mask = model.start(inputs, **features(batch), key=embedding_key)
        skip, last = self.config.skipped(model.config), model.config.num_layers
        early = model.apply_layers(x, mask=mask, key=layers_key, part=(0, skip))
        late = model.apply_layers(early, mask=mask, key=layers_key, part=(skip, last))
        documents = Documents.of(batch, pad_id=model.config.pad_id)
        summary = self.summaries(late, documents)
        pattern = model.pattern(mask, x.shape[1])

        def call(layer: PostNormLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, pattern=pattern, key=key), None

        each = None if keys[1] is None else jax.random.split(keys[1], self.config.head_layers)
        read, running = documents.headed(early, summary), model.config.running
        states, _ = scan_layers(self.condenser, call, read, inputs=each, running=running)
        return late, states

    def summaries(self, late: Float[Array, "B S D"], documents: Documents) -> Float[Array, "B S D"]:
        """Return the last [CLS] state of each position's document."""
        return jnp.take_along_axis(late, documents.first[..., None], axis=1)


def head_layer(model: BertConfig) -> PostNormConfig:
    """Return the config of the Condenser head's layers, with the sizes of the encoder's layers."""
    stddev = model.initializer_stddev
    if model.d_model < FAN_IN_BELOW:
        stddev = max(stddev, model.d_model**-0.5)
    return dataclasses.replace(model.layer, initializer_stddev=stddev)


_NEVER = -1e9
"""Score of spans that are not candidates; finite, so that a row of padding does not give NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoCondenser(Condenser):
    """Condenser with a contrastive loss of spans (coCondenser); fields as in `Condenser`."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (Spans,)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "CoCondenserLoss":
        return CoCondenserLoss(self, self.checked(model), rngs=rngs)

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """Return the contrastive loss of the spans of a whole batch.

        Args:
          rows: "summaries" [B, 2, D], the float32 [CLS] states of the spans.
          batch: batch with the spans, to detect padding and duplicates.
          step: not used.
        """
        documents, num, size = rows["summaries"].shape
        own = rows["summaries"].reshape(documents * num, size)
        # Every device needs all spans; the gradient returns to the devices that computed them.
        gathered = constrain(own, None, None)
        products = jnp.einsum("BD,ND->BN", own, gathered, precision=jax.lax.Precision.HIGHEST)
        scores = jnp.where(candidates(batch), products, _NEVER)
        other = jnp.arange(documents * num, dtype=jnp.int32) ^ 1
        losses, _ = cross_entropy(scores, other)
        there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2)
        weights = jnp.repeat(jnp.all(there, axis=1), num).astype(jnp.float32)
        score = jnp.take_along_axis(scores, other[:, None], axis=1)[:, 0]
        right = correct(scores, score)
        total, weight = jnp.sum(losses * weights), jnp.sum(weights)
        return Loss(
            terms={"contrastive": Term(total, weight)},
            metrics={
                "contrastive_cross_entropy": (total, weight),
                "contrastive_accuracy": (jnp.sum(right * weights), weight),
            },
        )


class CoCondenserLoss(CondenserLoss):
    """Loss module that computes the Condenser losses and the [CLS] states of spans."""

    def __call__(
        self, model: Bert, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_batch(self.config, batch)
        documents, num, length = batch["encoder_input_tokens"].shape
        flat = {
            name: value.reshape(documents * num, length)
            for name, value in batch.items()
            if name.startswith("encoder_")
        }
        loss, summaries = self.condensed(model, heads, flat, key=key)
        return loss._replace(rows={"summaries": summaries.reshape(documents, num, -1)})


def candidates(batch: Batch) -> Bool[Array, "N N"]:
    """Return a mask of the spans that each span is compared with.

    These are the other span of its document, and negatives from other documents.

    Args:
      batch: batch in the layout `Spans` with N / 2 documents.
    """
    documents, num, length = batch["encoder_input_tokens"].shape
    tokens = batch["encoder_input_tokens"].reshape(documents * num, length)
    there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2).reshape(-1)
    place = jnp.arange(documents * num)
    other = place ^ 1
    same = jnp.all(tokens[:, None] == tokens[None], axis=2)
    is_other = place[None] == other[:, None]
    return (there[None] & ~same & ~same[other]) | is_other
