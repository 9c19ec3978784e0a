"""Pretraining of retrievers: RetroMAE, DupMAE, Condenser and coCondenser.

RetroMAE and DupMAE: pretraining of [CLS] vectors by a weak decoder.

Xiao et al. 2022, arXiv:2205.12035, and the code of staoxiao/RetroMAE; Xiao et al. 2023 for the bag
of words (DupMAE, arXiv:2305.02564). The encoder is a masked language model; c is its last [CLS]
state:

    enhanced:  one layer with the queries  c + p_i        (or, "normalised", LN(c + p_i + type))
               and the keys                c, e_1, e_2, ...  (e the embeddings of the whole text)
               i attends to j if  j is real, j != i, and j is not masked for i
               loss over all tokens of a document except the first and the last
    basic:     `decoder_layers` layers over c, e_1, e_2, ... with masked tokens; loss over these

Each query of the enhanced decoder has its own mask, one of `mask_pool` masks that are sampled for
the row. For the text  [CLS] a b [SEP]  and masks {a} for a, {b} for [SEP], none for b,
visible(i, j) is

              [CLS]  a   b  [SEP]
    a           1    0   1    1
    b           1    1   0    1          only b itself is hidden
    [SEP]       1    1   0    0

Both losses and the bag of words share the masked-LM head. BGE's models have the "normalised"
queries. Rows may be packed: each document has its own c and attends only to itself, but the bag of
words needs one document per row. c is the encoder's output, even if the masked-LM head reads other
states.

DupMAE's bag of words is predicted by all token states of a text together (arXiv:2305.02564).

    loss = -1 / length * sum over the text's different tokens v of log softmax(s)_v
    s_v  = max over positions i of logit_v(i)

As in the code of staoxiao/RetroMAE, a token that occurs twice counts once in the sum and twice in
the length. Logits are computed for some positions at a time: there is never an array [B, S, V].

Condenser, and coCondenser on spans of documents: pretraining of [CLS] vectors.

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
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, Whole
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Encoder, Layout, Spans
from t5x_lite.models.base import ModelConfig, Output, RowShapes
from t5x_lite.models.encoder import Bert, BertConfig, EncoderConfig, EncoderModel
from t5x_lite.models.heads import Head, HeadModules, MaskedLMHead, Mlm
from t5x_lite.models.vector_heads import Dense, dense_of
from t5x_lite.nn.attention_pattern import document_positions
from t5x_lite.nn.dense import einsum, lookup, split_key
from t5x_lite.nn.layers import PostNormConfig, PostNormLayer
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import stacked
from t5x_lite.nn.stack import Running, scan_layers
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.likelihood import correct, cross_entropy, token_losses
from t5x_lite.objectives.masked_lm import Masks, Ratio, check_batch, features, real_tokens, sums

_UNSEEN = -1000.0
"""Logit of positions where `read` is False."""


def bag_losses(
    states: Float[Array, "B S E"],
    table: Float[Array, "V E"],
    bias: Float[Array, " V"],
    tokens: Int[Array, "B S"],
    *,
    read: Bool[Array, "B S"],
    counted: Bool[Array, "B S"],
    chunk: int,
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Return DupMAE's bag-of-words loss of each row.

    Args:
      states: hidden states that are multiplied with the token embedding.
      table: token embedding.
      bias: bias of the logits.
      tokens: tokens of the text.
      read: True for positions that predict the bag of words.
      counted: True for tokens that the bag of words includes.
      chunk: number of positions for which logits are computed together, also in the backward pass.

    Returns:
      The loss of each row; and its weight, 1 for rows with a bag of words, else 0.
    """
    scores = bag_scores(states, table, bias, read=read, chunk=chunk)

    def bag(row: Array, counted: Array) -> Array:
        return jnp.zeros(table.shape[0], jnp.float32).at[row].max(counted.astype(jnp.float32))

    words = jnp.sum(counted, axis=1).astype(jnp.float32)
    log_p = jax.nn.log_softmax(scores, axis=-1)
    total = -jnp.sum(jax.vmap(bag)(tokens, counted) * log_p, axis=1)
    return total / jnp.maximum(words, 1.0), (words > 0).astype(jnp.float32)


def bag_scores(
    states: Float[Array, "B S E"],
    table: Float[Array, "V E"],
    bias: Float[Array, " V"],
    *,
    read: Bool[Array, "B S"],
    chunk: int,
) -> Float[Array, "B V"]:
    """Return each vocabulary token's highest logit over the positions where `read` is True.

    Arguments are as for `bag_losses`. Without such positions, all scores are very negative.
    """
    batch, length = read.shape
    num = -(-length // chunk)
    missing = num * -(-length // num) - length

    def chunks(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, -1, num, *x.shape[2:]), 2, 0)

    @jax.checkpoint
    def highest(scores: Array, slices: tuple[Array, Array]) -> tuple[Array, None]:
        states, read = slices
        logits = einsum("BSE,VE->BSV", states.astype(table.dtype), table)
        logits = jnp.where(read[..., None], logits + bias.astype(jnp.float32), _UNSEEN)
        return jnp.maximum(scores, jnp.max(logits, axis=1)), None

    start = jnp.full((batch, table.shape[0]), _UNSEEN, jnp.float32)
    return jax.lax.scan(highest, start, (chunks(states), chunks(read)))[0]


def largest(scores: Float[Array, "B V"], number: int) -> Float[Array, "B V"]:
    """Keep only the `number` largest scores of each row, as in DupMAE's sparse vectors.

    Args:
      scores: scores of the vocabulary.
      number: number of kept scores; ties with the last are also kept.
    """
    last = jax.lax.top_k(scores, min(number, scores.shape[1]))[0][:, -1:]
    return jnp.where((scores >= last) & (scores > _UNSEEN), scores, 0.0)


Decoder = Literal["enhanced", "basic"]
Query = Literal["raw", "normalised"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetroMAE(Masks, Objective):
    """Masked language modeling with an additional loss of a weak decoder (RetroMAE, DupMAE).

    The objective also has the fields of `Masks`.

    Attributes:
      ratio: fraction of tokens in the encoder's masks.
      whole_word: True if the masks of encoder and decoder cover complete words.
      decoder: kind of the decoder, "enhanced" or "basic".
      decoder_ratio: fraction of tokens in the decoder's masks; None is 0.5 (enhanced) or 0.7
        (basic).
      decoder_layers: number of layers of the basic decoder; the enhanced decoder has one layer.
      query: query of the enhanced decoder at a position: "raw" is [CLS] state plus position
        embedding; "normalised" adds the token type and applies the embeddings' layer norm.
      mask_pool: maximum number of masks sampled for each row; each query uses one of them.
      bag_of_words: weight of DupMAE's bag-of-words loss; 0 omits it (the paper: 0.1).
      logits_chunk: number of positions per row for which logits are computed together; None: all.
    """

    ratio: Ratio = 0.3
    whole_word: bool = True
    decoder: Decoder = "enhanced"
    decoder_ratio: Ratio | None = None
    decoder_layers: int = 1
    query: Query = "raw"
    mask_pool: Count = 256
    bag_of_words: Annotated[float, AtLeast(0)] = 0.0
    logits_chunk: Count | None = 32

    layouts: ClassVar[tuple[type[Layout], ...]] = (Encoder,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_layers < 1 or (self.decoder == "enhanced" and self.decoder_layers > 1):
            raise InputError(
                "objective.decoder_layers must be at least 1, or exactly 1 for the enhanced "
                f"decoder, but is {self.decoder_layers}"
            )

    @property
    def unpackable(self) -> str:
        return "objective.bag_of_words counts the words of a row" if self.bag_of_words else ""

    @property
    def ratio_of_decoder(self) -> float:
        """Fraction of tokens in the decoder's masks."""
        default = 0.5 if self.decoder == "enhanced" else 0.7
        return default if self.decoder_ratio is None else self.decoder_ratio

    def smaller_logits(self) -> str:
        return "--objective.logits-chunk 16" if self.logits_chunk is None else ""

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "RetroMAELoss":
        """Build the loss module; its parameters are the decoder's."""
        self.check_vocabulary(model)
        if not isinstance(model, EncoderConfig):
            raise InputError(
                f"objective RetroMAE requires an encoder, but the model is {type(model).__name__}"
            )
        if model.table_size != model.d_model:
            raise InputError(
                "RetroMAE adds hidden states to embeddings, so model.embedding_size must be "
                f"model.d_model ({model.d_model}) or None: got {model.table_size}"
            )
        if not model.positions_at_input:
            raise InputError(
                "RetroMAE's decoder needs position embeddings at the model's input; set "
                "model.positions learned, or for a DeBERTa model.position_biased_input True"
            )
        return RetroMAELoss(self, model, rngs=rngs)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """Return the trained heads "mlm" and "dense"."""
        return (Mlm(), dataclasses.replace(dense_of(kept) or Dense(), pooling="cls"))

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """Return the FLOPs for one row: encoder, decoder, and the masked-LM head of both."""
        (length,) = shapes["encoder_input_tokens"]
        slots = masked_lm.most(length, self.ratio)
        flops = model.text_flops(length) + model.masked_lm_head_flops(slots)
        layer = EncoderConfig.layer_flops(model, length)  # without a DeBERTa's relative positions
        flops += self.decoder_layers * layer + model.masked_lm_head_flops(length)
        return flops + (model.masked_lm_head_flops(length) if self.bag_of_words else 0)


class RetroMAELoss(nnx.Module):
    """Loss module that computes the losses of encoder, decoder and bag of words.

    Args:
      config: the objective.
      model: config of the encoder.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: RetroMAE, model: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        layer = model.layer
        self.decoder = stacked(
            lambda rngs: PostNormLayer(layer, rngs=rngs), rngs, num=config.decoder_layers
        )

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_batch(self.config, batch)
        noise, dropout = masked_lm.noise_and_dropout(key)
        encoder_noise, decoder_noise = jax.random.split(noise)
        encoder_key, decoder_key = split_key(dropout, 2)
        head: MaskedLMHead = heads["mlm"]
        vocabulary = {"vocab_size": model.config.vocab_size, "pad_id": model.config.pad_id}
        inputs, slots = self.config.draw(batch, **vocabulary, key=encoder_noise)
        hidden = model(inputs, **features(batch), key=encoder_key)
        table, tokens = model.tables()["token"], batch["encoder_input_tokens"]
        total, correct, weight = sums(
            head(masked_lm.at_slots(hidden, slots), table),
            masked_lm.at_slots(tokens, slots),
            slots.used,
        )
        losses, right, weights = self._decoded(
            model, head, hidden, batch, noise=decoder_noise, key=decoder_key
        )
        decoder_total, decoder_weight = jnp.sum(losses * weights), jnp.sum(weights)
        terms = {
            "encoder": Term(total, weight),
            "decoder": Term(decoder_total, decoder_weight),
        }
        metrics = {
            "token_accuracy": (correct, weight),
            "cross_entropy": (total, weight),
            "decoder_accuracy": (jnp.sum(right * weights), decoder_weight),
            "decoder_cross_entropy": (decoder_total, decoder_weight),
        }
        if self.config.bag_of_words:
            row_losses, there = self._bags(model, head, hidden, batch)
            bag, num_rows = jnp.sum(row_losses * there), jnp.sum(there)
            terms["bag_of_words"] = Term(bag, num_rows, self.config.bag_of_words)
            metrics["bag_of_words"] = (bag, num_rows)
        return Loss(terms=terms, metrics=metrics)

    def _decoded(
        self,
        model: EncoderModel,
        head: MaskedLMHead,
        hidden: Float[Array, "B S D"],
        batch: Batch,
        *,
        noise: Key,
        key: Key | None,
    ) -> tuple[Float[Array, "B S"], Float[Array, "B S"], Float[Array, "B S"]]:
        """Return the decoder's cross-entropy, accuracy and weight at each position."""
        config, tokens = self.config, batch["encoder_input_tokens"]
        documents = Documents.of(batch, pad_id=model.config.pad_id)
        embedding_key, query_key, layers_key = split_key(key, 3)
        ids = {n: v for n, v in features(batch).items() if n != "segment_ids"}
        ids.setdefault("positions", documents.positions)
        summary = jnp.take_along_axis(hidden, documents.first[..., None], axis=1)
        if config.decoder == "enhanced":
            keys = documents.headed(model.embeddings(tokens, **ids, key=embedding_key), summary)
            mask = self._visible(batch, documents, key=noise)
            if config.query == "raw":
                rows = ids["positions"] + model.config.first_position
                places = lookup(model.tables()["position"], rows)
                query = summary + places.astype(summary.dtype)
            else:
                query = model.embed_vectors(summary, **ids, key=query_key)
            weights = documents.inner
        else:
            of_decoder = dataclasses.replace(
                config, ratio=config.ratio_of_decoder, mask_fraction=1.0, random_fraction=0.0
            )
            masked, slots = of_decoder.draw(
                batch,
                vocab_size=model.config.vocab_size,
                pad_id=model.config.pad_id,
                key=noise,
            )
            query = documents.headed(model.embeddings(masked, **ids, key=embedding_key), summary)
            keys, mask = None, documents.together
            chosen = masked_lm.put_at_slots(
                jnp.zeros_like(tokens), slots, jnp.ones_like(slots.positions)
            )
            weights = chosen > 0
        decoded = self._layers(query, keys, mask, model.config.running, key=layers_key)
        losses, right = _token_losses(
            head, decoded, model.tables()["token"], tokens, chunk=config.logits_chunk
        )
        return losses, right, weights.astype(jnp.float32)

    def _layers(
        self,
        x: Array,
        keys: Array | None,
        mask: Visibility,
        running: Running,
        *,
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        pattern = running.pattern(mask, x.shape[1])

        def call(layer: PostNormLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, keys_from=keys, pattern=pattern, key=key), None

        num = self.config.decoder_layers
        each = None if key is None else jax.random.split(key, num)
        straight = Running(unroll=True, remat="none")
        return scan_layers(self.decoder, call, x, inputs=each, running=straight)[0]

    def _visible(self, batch: Batch, documents: "Documents", *, key: Key) -> Visibility:
        """Return the attention mask of the enhanced decoder, sampled separately for each query."""
        config, word_ids = self.config, batch["encoder_word_ids"]
        batch_size, length = word_ids.shape
        unit_key, choice_key, pick_key = jax.random.split(key, 3)
        what = masked_lm.units(
            word_ids, whole_word=config.whole_word, max_ngram=config.max_ngram, key=unit_key
        )
        pool = min(length, config.mask_pool)
        number = masked_lm.counts(documents.real, config.ratio_of_decoder)
        masks = masked_lm.choose(
            jnp.broadcast_to(what[:, None], (batch_size, pool, length)),
            jnp.broadcast_to(number[:, None], (batch_size, pool)),
            key=choice_key,
        )
        picked = jax.random.randint(pick_key, (batch_size, length), 0, pool)
        return dataclasses.replace(documents.together, hidden=masks, picked=picked, itself=False)

    def _bags(
        self, model: EncoderModel, head: MaskedLMHead, hidden: Float[Array, "B S D"], batch: Batch
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        tokens = batch["encoder_input_tokens"]
        real = real_tokens(batch, pad_id=model.config.pad_id)
        length = tokens.shape[1]
        return bag_losses(
            head.transform(hidden),
            model.tables()["token"],
            head.bias[...],
            tokens,
            read=real & (jnp.arange(length) > 0),
            counted=batch["encoder_word_ids"] > 0,
            chunk=length if self.config.logits_chunk is None else self.config.logits_chunk,
        )


@dataclasses.dataclass(frozen=True)
class Documents:
    """Boundaries of the documents of each row.

    Attributes:
      positions: positions within each document, from 0.
      real: True for tokens that are not padding.
      first: index of the first token of each position's document.
      together: mask in which each position attends to its own document.
      inner: True for all tokens of a document except the first and the last.
    """

    positions: Int[Array, "B S"]
    real: Bool[Array, "B S"]
    first: Int[Array, "B S"]
    together: Visibility
    inner: Bool[Array, "B S"]

    @classmethod
    def of(cls, batch: Batch, *, pad_id: int) -> "Documents":
        """Find documents by segment ids and positions; without these, a row is one document."""
        tokens = batch["encoder_input_tokens"]
        real = real_tokens(batch, pad_id=pad_id)
        place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        positions = batch.get("encoder_positions")
        if positions is None and "encoder_segment_ids" in batch:
            positions = document_positions(batch["encoder_segment_ids"])
        if positions is None:
            positions = jnp.broadcast_to(place, tokens.shape)
        first = place - positions
        same_as_next = (first[:, 1:] == first[:, :-1]) & real[:, 1:]
        last = ~jnp.pad(same_as_next, ((0, 0), (0, 1)))
        together = Visibility(keys=jnp.where(real, first + 1, 0), queries=first + 1)
        return cls(positions, real, first, together, real & ~last & (positions > 0))

    def headed(
        self, embeddings: Float[Array, "B S D"], summary: Float[Array, "B S D"]
    ) -> Float[Array, "B S D"]:
        """Replace the embedding of each document's first token by the encoder's [CLS] state."""
        return jnp.where((self.positions == 0)[..., None], summary, embeddings)


def _token_losses(
    head: MaskedLMHead, hidden: Array, table: Array, targets: Array, *, chunk: int | None
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    found = token_losses(
        head.transform(hidden),
        Output(table, ("vocab", "embed"), 1.0),
        targets,
        chunk=targets.shape[1] if chunk is None else chunk,
        bias=head.bias[...],
    )
    return found.loss, found.correct


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
      late_mlm: True to add the masked-LM loss of the last hidden states.
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
        """Return the trained heads "mlm" and "dense"."""
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
          batch: batch of tokenized texts.
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
        """Return the last [CLS] hidden state of each position's document."""
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
    """Condenser with an additional contrastive loss of text spans (coCondenser)."""

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
      batch: batch of N spans, two of each document.
    """
    documents, num, length = batch["encoder_input_tokens"].shape
    tokens = batch["encoder_input_tokens"].reshape(documents * num, length)
    there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2).reshape(-1)
    place = jnp.arange(documents * num)
    other = place ^ 1
    same = jnp.all(tokens[:, None] == tokens[None], axis=2)
    is_other = place[None] == other[:, None]
    return (there[None] & ~same & ~same[other]) | is_other
