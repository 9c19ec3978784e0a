"""Commands that stay: serve."""

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
    """Answer over HTTP and JSON: POST /predict, /score, /embed, /rerank; a page to try it at /.

    Only this machine can connect by default; any other --host needs an access token, in the
    environment variable T5X_LITE_TOKEN or in --token-file. GET /ready succeeds when each endpoint
    answers; its other programs compile in the background. After SIGTERM or Ctrl-C it answers
    accepted requests and exits with 0.

    Example:
        t5x-lite serve --checkpoint work/reviews --port 8000

    Args:
      checkpoint: a work directory or a checkpoint directory; several are an ensemble, which
        averages their logits.
      host: the address to listen on.
      port: the port to listen on; 0 chooses a free port and logs it.
      token_file: a file that holds the access token.
      step: step number of the checkpoint in a work directory, or best for the run's best
        checkpoint; default: the newest.
      base: directory of the base model, for a checkpoint that holds only trained parameters;
        default: the recorded base.
      adapters: the adapters to use.
      adapters_directory: directory with the adapters that PUT /adapters/NAME may add while the
        server runs; default: none may be added or removed.
      endpoints: some of predict, score, embed and rerank; default: predict and score for a T5,
        predict for an encoder with a task head, rerank for a cross-encoder, and embed for other
        encoders.
      batch_size: maximum texts of a batch.
      lengths: padded input lengths in tokens, powers of two, with one compiled program per length;
        default: the maximum length, a quarter of it, and so on.
      wait_ms: maximum milliseconds that a text waits for further texts of its batch.
      inputs_length: maximum tokens of an input; default: the model's training length.
      targets_length: maximum tokens of a target or candidate, including EOS.
      long_inputs: "cut" truncates longer inputs and marks their answers; "refuse" rejects them.
      max_decode_length: maximum tokens of a prediction.
      num_beams: width of the beam search; 1 disables it.
      length_rule: length normalization of beam scores: T5X's (t5x) or transformers' (hf).
      length_penalty: exponent of the length rule; default: 0.6 for t5x and 1.0 for hf.
      early_stopping: with length rule hf, stop at num_beams finished outputs (True), when no better
        beam is likely (False), or when no better beam is possible (never).
      num_return: number of predictions per input; if it is above 1, each result holds a list
        "predictions", best first.
      temperature: sampling temperature; 0 takes the likeliest token.
      top_k: samples among the K likeliest tokens; 0 uses all.
      top_p: nucleus sampling: keeps the smallest set of tokens with probability X.
      min_p: samples only tokens with at least X times the probability of the likeliest token.
      min_length: minimum tokens of a prediction.
      no_repeat_ngram: forbids repeated sequences of N tokens in a prediction; 0 allows repeats.
      pooling: pooling of hidden states into a vector; default: the checkpoint's setting.
      normalize: scales vectors to length 1; default: the checkpoint's setting, or True.
      role: kind of embedded texts, query or passage, for a retriever with a separate passage
        encoder or projection.
      head: name of the head that predicts, for an encoder with several heads.
      probabilities: returns the probability of each label or choice, even if a request does not ask
        for them.
      threshold: minimum probability of a label in multi-label classification; default: 0.5.
      doc_stride: overlap of the windows of a long text, in tokens; default: 128 for question
        answering; a tagger truncates instead.
      longest_answer: maximum tokens of an answer span; default: 15.
      impossible_answers: allows the empty answer "", as in SQuAD 2.0.
      compilation_cache: directory that caches compiled programs, so that the next start is fast.
      queue: maximum number of waiting texts; further requests get 503 with Retry-After.
      max_texts: maximum texts of a request.
      max_body: maximum bytes of a request.
      connections: maximum open connections.
      timeout: maximum seconds until a request is answered.
      body_timeout: seconds that a request may take to arrive.
      trust_project: lets a checkpoint's config run your own classes, not only those in t5x_lite.

    Raises:
      InputError: if the checkpoint or a choice is wrong, the address is taken, or other machines
        can reach it without a token.
    """
    some_directory(checkpoint)
    for length in lengths:
        if length < 16 or length & (length - 1):
            raise OptionError(f"--lengths must be powers of two from 16 on, got {length}")
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
