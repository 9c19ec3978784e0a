"""Command that keeps running as a server: serve."""

from collections.abc import Sequence
from typing import Annotated, Literal

import tyro

from t5x_lite.commands.command import command
from t5x_lite.commands.options import some_directory
from t5x_lite.core.option_types import (
    NO_ROW_MODULES,
    Count,
    Directories,
    LongInputs,
    Natural,
    Number,
    OptionalDirectory,
    OptionalFile,
    OptionalNatural,
    OptionalNumber,
    OptionalPooling,
    OptionalPositive,
    OptionalText,
    Positive,
    RowModules,
    Step,
    Text,
    Texts,
)
from t5x_lite.core.options import In, OptionError
from t5x_lite.core.project import trusting_checkpoints

Counts = Annotated[Sequence[int], tyro.conf.arg(metavar="N [N ...]")]


@command
def serve(
    checkpoint: Directories,
    *,
    host: Text = "127.0.0.1",
    port: Annotated[Natural, In(0, 65_535, "[]")] = 8000,
    token_file: OptionalFile = None,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: RowModules = NO_ROW_MODULES,
    adapters_directory: OptionalDirectory = None,
    endpoints: Texts = (),
    batch_size: Positive = 32,
    lengths: Counts = (),
    wait_ms: Annotated[Number, In(0, 60_000, "[]")] = 5.0,
    inputs_length: OptionalPositive = None,
    targets_length: Positive = 64,
    long_inputs: LongInputs = "cut",
    max_decode_length: Count = 64,
    num_beams: Count = 1,
    length_rule: Literal["t5x", "hf"] = "t5x",
    length_penalty: OptionalNumber = None,
    early_stopping: bool | Literal["never"] = False,
    num_return: Count = 1,
    temperature: Number = 0.0,
    top_k: Count = 0,
    top_p: Number = 1.0,
    min_p: Number = 0.0,
    min_length: Count = 0,
    no_repeat_ngram: Count = 0,
    pooling: OptionalPooling = None,
    normalize: bool | None = None,
    role: Literal["query", "passage"] = "query",
    head: OptionalText = None,
    probabilities: bool = False,
    threshold: Annotated[OptionalNumber, In(0, 1, "[]")] = None,
    doc_stride: OptionalNatural = None,
    longest_answer: OptionalPositive = None,
    impossible_answers: bool = False,
    compilation_cache: Text = "",
    queue: Count = 1024,
    max_texts: Count = 128,
    max_body: Count = 1 << 20,
    connections: Count = 1000,
    timeout: Number = 60.0,
    body_timeout: Number = 10.0,
    trust_project: bool = False,
) -> None:
    """Serve a model over HTTP and JSON: POST /predict, /score, /embed, /rerank; a demo page at /.

    By default, only this machine can connect; any other --host needs an access token, in the
    environment variable T5X_LITE_TOKEN or in --token-file. GET /ready succeeds as soon as each
    endpoint can answer a request; programs for other input lengths compile in the background. After
    SIGTERM or Ctrl-C, the server answers the accepted requests and exits with code 0.

    Example:
        t5x-lite serve --checkpoint work/reviews --port 8000

    Args:
      checkpoint: work directory or checkpoint directory of the model; several directories form an
        ensemble that averages the models' logits.
      host: network address to listen on.
      port: TCP port to listen on; 0 chooses a free port and logs it.
      token_file: file with the access token; default: the environment variable T5X_LITE_TOKEN.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: adapters of the checkpoint to use; default: all adapters.
      endpoints: endpoints to serve, some of predict, score, embed and rerank; default: predict and
        score for a T5, predict for an encoder with a task head, rerank for a cross-encoder, and
        embed for other encoders.
      batch_size: maximum number of texts per batch.
      lengths: input lengths in tokens, powers of two, to which inputs are padded; each length has
        one compiled program; default: the maximum length, a quarter of it, and so on.
      wait_ms: maximum time in milliseconds that a text waits for other texts to fill its batch.
      inputs_length: maximum number of tokens of an input; default: the length used in training.
      targets_length: maximum number of tokens of a target or candidate to score, including EOS.
      long_inputs: treatment of inputs longer than --inputs-length: "cut" truncates them and marks
        their answers, "refuse" answers with an error.
      max_decode_length: maximum number of tokens in a prediction.
      num_beams: number of beams of the beam search; 1 disables beam search.
      length_rule: normalization of beam scores by length, as in T5X (t5x) or transformers (hf).
      length_penalty: exponent of the length normalization of beam scores; default: 0.6 with
        --length-rule t5x, 1.0 with --length-rule hf.
      early_stopping: end of beam search with --length-rule hf: at num_beams finished outputs
        (True), when a better output is unlikely (False), or when a better output is impossible
        ("never").
      num_return: number of predictions per input; if it is above 1, each result has a list
        "predictions", sorted from best to worst.
      temperature: sampling temperature, at least 1e-6; 0 always picks the most probable token.
      top_k: number of most probable tokens to sample from; 0 samples from all tokens.
      top_p: total probability of the tokens for nucleus sampling; 1 samples from all tokens.
      min_p: minimum probability of a sampled token, as a fraction of the most probable token's; 0
        sets no minimum.
      min_length: minimum number of tokens in a prediction.
      no_repeat_ngram: length of token sequences that must not repeat; 0 allows repetition.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting.
      normalize: scale vectors to length 1; default: the checkpoint's setting, or else True.
      role: kind of the embedded texts, query or passage; a retriever with a separate passage
        encoder or projection uses it for passages.
      head: name of the encoder head that predicts; default: the trained head, or the only head.
      probabilities: return the probability of each label or choice, even if not requested.
      adapters_directory: directory with the adapters that PUT /adapters/NAME may add while the
        server runs; default: none may be added or removed.
      threshold: minimum probability of a label in multi-label classification; default: 0.5.
      doc_stride: number of tokens that two neighboring windows of a long text share; default: 128
        for question answering, while a tagger truncates long texts.
      longest_answer: maximum number of tokens of an answer in question answering; default: 15.
      impossible_answers: allow the empty answer "" in question answering, as in SQuAD 2.0.
      compilation_cache: directory of cached compiled programs, for a fast start; default: no cache.
      queue: maximum number of waiting texts; further requests get status 503 with Retry-After.
      max_texts: maximum number of texts per request.
      max_body: maximum size of a request body in bytes.
      connections: maximum number of open connections.
      timeout: maximum time in seconds until a request is answered.
      body_timeout: maximum time in seconds for a request to arrive completely.
      trust_project: allow the checkpoint's config to import classes from outside of t5x_lite.

    Raises:
      InputError: if the checkpoint or an option is invalid, the address is in use, or other
        machines can connect without a token.
    """
    some_directory(checkpoint)
    for length in lengths:
        if length < 16 or length & (length - 1):
            raise OptionError(f"--lengths must be powers of two, at least 16, got {length}")
    from t5x_lite.checkpoints.base import base_at
    from t5x_lite.decoding.config import Decoding
    from t5x_lite.inference.answers import Asked as Answers
    from t5x_lite.serve import serving
    from t5x_lite.serve.endpoints import Asked
    from t5x_lite.serve.requests import Limits

    asked = Asked(
        decoding=Decoding(
            max_decode_length=max_decode_length,
            num_beams=num_beams,
            length_rule=length_rule,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            num_return=num_return,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            min_length=min_length,
            no_repeat_ngram=no_repeat_ngram,
        ),
        lengths=tuple(sorted(set(lengths))) or None,
        targets_length=targets_length,
        long_inputs=long_inputs,
        max_rows=max_texts,
        pooling=pooling,
        normalize=normalize,
        role=role,
        head=head,
        answers=Answers(
            probabilities=probabilities,
            threshold=threshold,
            doc_stride=doc_stride,
            longest_answer=longest_answer,
            impossible_answers=impossible_answers,
        ),
    )
    limits = Limits(
        max_body=max_body,
        max_rows=max_texts,
        queue=queue,
        connections=connections,
        timeout=timeout,
        body_timeout=body_timeout,
    )
    with trusting_checkpoints(trust_project), base_at(base):
        serving.serve(
            checkpoint,
            address=serving.Address(host=host, port=port, token_file=token_file),
            step=step,
            use=adapters.use,
            adapters=adapters.load,
            adapters_directory=adapters_directory,
            endpoints=endpoints,
            batch_size=batch_size,
            wait=wait_ms / 1000,
            inputs_length=inputs_length,
            compilation_cache=compilation_cache,
            asked=asked,
            limits=limits,
        )
