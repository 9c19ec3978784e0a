"""Commands that use a checkpoint: predict, score, embed, serve.

Commands that apply a checkpoint to the lines of a file: predict, score.

Command that keeps running as a server: serve.

The command embed: encode the texts of a file as vectors, without importing TensorFlow.

Files of any size are read in constant memory, in chunks of several batches; the texts of a chunk
are sorted by length. Each batch is divided among all devices. The output file appears when it is
complete, and a killed command resumes after the last complete chunk.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from t5x_lite.commands.command import command, some_directory
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE, new_directory
from t5x_lite.core.option_types import (
    NO_ROW_MODULES,
    Count,
    Directories,
    Directory,
    File,
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
from t5x_lite.core.options import Formerly, In, OptionError
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.core.workers import counting

if TYPE_CHECKING:
    import numpy as np

    from t5x_lite.core.trees import Params
    from t5x_lite.data.formats.pairs import PassageFormat, TextRecord
    from t5x_lite.data.formats.vectors import VectorWriter, Writer
    from t5x_lite.inference.checkpoint import Checkpoint
    from t5x_lite.inference.text_encoder import Embedder, HeadEmbedder, TextEncoder
    from t5x_lite.models.vector_heads import Role

_logger = logging.getLogger(__name__)


@command
def predict(
    checkpoint: Directories,
    *,
    input: File,
    output: File,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: RowModules = NO_ROW_MODULES,
    prompt: Text = "",
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    long_inputs: LongInputs = "cut",
    longest_line: Positive = LONGEST_LINE,
    max_decode_length: Positive = 64,
    num_beams: Positive = 1,
    length_rule: Literal["t5x", "hf"] = "t5x",
    length_penalty: OptionalNumber = None,
    early_stopping: bool | Literal["never"] = False,
    num_return: Positive = 1,
    temperature: Number = 0.0,
    top_k: Natural = 0,
    top_p: Number = 1.0,
    min_p: Number = 0.0,
    seed: Natural = 0,
    min_length: Natural = 0,
    no_repeat_ngram: Natural = 0,
    head: OptionalText = None,
    probabilities: bool = False,
    threshold: Annotated[OptionalNumber, In(0, 1, "[]")] = None,
    doc_stride: OptionalNatural = None,
    longest_answer: OptionalPositive = None,
    impossible_answers: bool = False,
    trust_project: bool = False,
) -> None:
    """Predict an output for each input: JSON lines {"inputs"} get {"inputs", "prediction"}.

    A line with the field "adapter" uses this adapter; lines with different adapters share batches.

    An encoder predicts with one of its heads. A classifier reads {"inputs"}, or {"inputs",
    "second"} for a pair, a tagger {"inputs"}, multiple choice {"inputs", "choices"}, and extractive
    question answering {"question", "context"}.

    A model that generates text decodes greedily, unless --num-beams or --temperature is given; an
    empty input becomes a single end-of-sequence token. If the command is killed, run it again to
    resume. An existing output file is replaced when the new output is complete.

    Example:
        t5x-lite predict --checkpoint work/reviews --input inputs.jsonl --output answers.jsonl

    Args:
      checkpoint: work directory or checkpoint directory of the model; several directories form an
        ensemble that averages the models' logits.
      input: input file with one JSON object per line; "-" reads standard input.
      output: output file with one JSON object per line; "-" writes to standard output.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      prompt: text that each prediction starts with; the field "prompt" of an input line overrides
        it.
      batch_size: number of inputs per batch.
      inputs_length: maximum number of tokens of an input or prompt; a longer prompt is an error;
        default: the length in the checkpoint's config.
      long_inputs: treatment of inputs longer than --inputs-length: "cut" truncates them with a
        warning, "refuse" stops with an error.
      longest_line: maximum length of an input line in bytes; a longer line is an error.
      max_decode_length: maximum number of tokens in a prediction, not counting its prompt.
      num_beams: number of beams of the beam search; 1 disables beam search.
      length_rule: normalization of beam scores by length, as in T5X (t5x) or transformers (hf).
      length_penalty: exponent of the length normalization of beam scores; default: 0.6 with
        --length-rule t5x, 1.0 with --length-rule hf.
      early_stopping: stopping rule of beam search with --length-rule hf, as in transformers: True
        stops at --num-beams finished outputs, False when a better output is unlikely, "never" when
        a better output is impossible.
      num_return: number of predictions per input; if it is above 1, each output line has a list
        "predictions", sorted from best to worst.
      temperature: sampling temperature, at least 1e-6; 0 always picks the most probable token.
      top_k: number of most probable tokens to sample from; 0 samples from all tokens.
      top_p: sum of probabilities of the most probable tokens to sample from (nucleus sampling); 1
        samples from all tokens.
      min_p: minimum probability of a sampled token, as a fraction of the most probable token's; 0
        sets no minimum.
      seed: random seed for sampling, below 2**32; the field "seed" of an input line overrides it.
      min_length: minimum number of tokens in a prediction.
      no_repeat_ngram: length of n-grams (in tokens) that must not repeat in a prediction; 0 allows
        all repetition.
      head: name of the encoder head to predict with; default: the head that was trained, or else
        the only head.
      probabilities: add the probability of each label or choice to the output.
      threshold: minimum probability of a label in multi-label classification; default: 0.5.
      doc_stride: number of tokens that neighboring windows of a long text share; default: 128 for
        question answering, no windows for taggers (long texts are truncated).
      longest_answer: maximum number of tokens of an answer in question answering; default: 15.
      impossible_answers: allow the empty answer "" in question answering, as in SQuAD 2.0.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the checkpoint or an input line is invalid, or the score of a prediction is NaN
        or infinite; no output is written then.
    """
    some_directory(checkpoint)
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.decoding.sampling import Decoding
    from t5x_lite.inference import checkpoint as json_answers
    from t5x_lite.inference.answers import Asked, check_record
    from t5x_lite.inference.checkpoint import InputReader, find_steps

    decoding = Decoding(
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
        seed=seed,
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
    )
    asked = Asked(
        probabilities=probabilities,
        threshold=threshold,
        doc_stride=doc_stride,
        longest_answer=longest_answer,
        impossible_answers=impossible_answers,
    )
    reader = InputReader(long_inputs)
    with trusting_checkpoints(trust_project), base_at(base):
        steps = find_steps(checkpoint, step=step)
        own = json_answers.head_of(steps, head, asked, decoding=decoding, prompt=prompt)
        same = {"use": adapters.use, "adapters": adapters.load, "inputs_length": inputs_length}
        identity = {**same, "long_inputs": long_inputs}
        if own is not None:
            json_answers.stream(
                input,
                output,
                fields=(),
                optional=("adapter",),
                check=lambda line: check_record(own, line.record, where=line.where),
                longest=longest_line,
                batch_size=batch_size,
                identity=json_answers.identity_of(
                    "predict",
                    input,
                    steps,
                    **identity,
                    head=own.name,
                    asked=dataclasses.asdict(asked),
                ),
                load=lambda: json_answers.answering(
                    steps, own, asked, reader, **same, batch_size=batch_size
                ),
            )
        else:
            json_answers.stream(
                input,
                output,
                fields=("inputs",),
                optional=("prompt", "adapter"),
                numbers=("seed",),
                longest=longest_line,
                batch_size=batch_size,
                identity=json_answers.identity_of(
                    "predict",
                    input,
                    steps,
                    **identity,
                    prompt=prompt,
                    decoding=dataclasses.asdict(decoding),
                ),
                load=lambda: json_answers.generating(
                    steps, decoding, reader, **same, prompt=prompt, batch_size=batch_size
                ),
            )
    reader.report()


@command
def score(
    checkpoint: Directories,
    *,
    input: File,
    output: File,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: RowModules = NO_ROW_MODULES,
    candidates: OptionalFile = None,
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    targets_length: OptionalPositive = None,
    long_inputs: LongInputs = "cut",
    longest_line: Positive = LONGEST_LINE,
    trust_project: bool = False,
) -> None:
    """Compute the log-likelihood of targets: JSON lines {"inputs", "targets"} get "log_likelihood".

    The log-likelihood is summed over the target's tokens and the end-of-sequence token;
    "num_tokens" is the number of these tokens. An empty string is encoded as a single
    end-of-sequence token. If the command is killed, run it again to resume. An existing output file
    is replaced when the new output is complete.

    Example:
        t5x-lite score --checkpoint work/t5 --input pairs.jsonl --output scores.jsonl

    Args:
      checkpoint: work directory or checkpoint directory of the model; several directories form an
        ensemble that averages the models' logits.
      input: input file with one JSON object per line; "-" reads standard input.
      output: output file with one JSON object per line; "-" writes to standard output.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      candidates: file with one candidate target per line; the output then has "prediction", the
        most likely candidate, and "scores", the log-likelihood of each candidate; default: score
        the field "targets" of each input line.
      batch_size: number of examples per batch.
      inputs_length: maximum number of tokens of an input; default: the length in the checkpoint's
        config.
      targets_length: maximum number of tokens of a target, including EOS; the log-likelihood of a
        truncated target covers only the kept tokens; default: unlimited.
      long_inputs: treatment of inputs longer than --inputs-length and targets longer than
        --targets-length: "cut" truncates them with a warning, "refuse" stops with an error.
      longest_line: maximum length of an input line in bytes; a longer line is an error.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the checkpoint or an input line is invalid; no output is written then.
    """
    some_directory(checkpoint)
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.inference import checkpoint as json_answers
    from t5x_lite.inference.checkpoint import Checkpoint, InputReader, TargetReader, find_steps

    reader, cutter = InputReader(long_inputs), TargetReader(long_inputs, targets_length)
    with trusting_checkpoints(trust_project), base_at(base):
        steps = find_steps(checkpoint, step=step)
        texts = None
        if candidates is not None:
            texts = json_answers.read_candidates(candidates, input=input, longest=longest_line)

        def load() -> json_answers.Change:
            model = Checkpoint.load(
                steps, use=adapters.use, adapters=adapters.load, inputs_length=inputs_length
            )
            if texts is None:
                return json_answers.scoring(model, reader, cutter, batch_size=batch_size)
            return json_answers.ranking(model, reader, cutter, texts, batch_size=batch_size)

        json_answers.stream(
            input,
            output,
            fields=("inputs", "targets") if texts is None else ("inputs",),
            optional=("adapter",),
            longest=longest_line,
            batch_size=batch_size,
            identity=json_answers.identity_of(
                "score",
                input,
                steps,
                use=adapters.use,
                adapters=adapters.load,
                candidates=texts,
                inputs_length=inputs_length,
                targets_length=targets_length,
                long_inputs=long_inputs,
            ),
            load=load,
            steps=texts is None,  # a line of a ranking is as many rows as there are candidates
        )
    reader.report()
    cutter.report()


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
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      endpoints: endpoints to serve, any of predict, score, embed and rerank; default: predict and
        score for a T5, predict for an encoder with a task head, rerank for a cross-encoder, embed
        for other encoders.
      batch_size: maximum number of texts per batch.
      lengths: lengths in tokens, powers of two, to which inputs are padded; each length has one
        compiled program; default: the maximum length divided by 1, 4, 16 and so on.
      wait_ms: maximum time in milliseconds that a text waits for other texts to fill its batch.
      inputs_length: maximum number of tokens of an input; default: the length in the checkpoint's
        config.
      targets_length: maximum number of tokens of a target or candidate to score, including EOS.
      long_inputs: treatment of inputs longer than --inputs-length: "cut" truncates them and adds
        "cut": true to the results, "refuse" returns an error.
      max_decode_length: maximum number of tokens in a prediction.
      num_beams: number of beams of the beam search; 1 disables beam search.
      length_rule: normalization of beam scores by length, as in T5X (t5x) or transformers (hf).
      length_penalty: exponent of the length normalization of beam scores; default: 0.6 with
        --length-rule t5x, 1.0 with --length-rule hf.
      early_stopping: stopping rule of beam search with --length-rule hf, as in transformers: True
        stops at --num-beams finished outputs, False when a better output is unlikely, "never" when
        a better output is impossible.
      num_return: number of predictions per input; if it is above 1, each result has a list
        "predictions", sorted from best to worst.
      temperature: sampling temperature, at least 1e-6; 0 always picks the most probable token.
      top_k: number of most probable tokens to sample from; 0 samples from all tokens.
      top_p: sum of probabilities of the most probable tokens to sample from (nucleus sampling); 1
        samples from all tokens.
      min_p: minimum probability of a sampled token, as a fraction of the most probable token's; 0
        sets no minimum.
      min_length: minimum number of tokens in a prediction.
      no_repeat_ngram: length of n-grams (in tokens) that must not repeat in a prediction; 0 allows
        all repetition.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting, or mean with a warning.
      normalize: scale vectors to length 1; default: the checkpoint's setting, or True if it has
        none.
      role: kind of the embedded texts, query or passage, for a retriever with different encoders or
        projections of queries and passages.
      head: name of the encoder head to predict with; default: the head that was trained, or else
        the only head.
      probabilities: return the probability of each label or choice, even if a request does not ask
        for it.
      adapters_directory: directory of adapters that clients may add with PUT /adapters/NAME while
        the server runs; default: clients may not add or remove adapters.
      threshold: minimum probability of a label in multi-label classification; default: 0.5.
      doc_stride: number of tokens that neighboring windows of a long text share; default: 128 for
        question answering, no windows for taggers (long texts are truncated).
      longest_answer: maximum number of tokens of an answer in question answering; default: 15.
      impossible_answers: allow the empty answer "" in question answering, as in SQuAD 2.0.
      compilation_cache: directory for compiled programs, so that the next start is faster; default:
        no cache.
      queue: maximum number of waiting texts; further requests get status 503 with Retry-After.
      max_texts: maximum number of texts per request.
      max_body: maximum size of a request body in bytes.
      connections: maximum number of open connections.
      timeout: maximum time in seconds until a request is answered.
      body_timeout: maximum time in seconds for a request to arrive completely.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Raises:
      InputError: if the checkpoint or an option is invalid, the address is in use, or other
        machines can connect without a token.
    """
    some_directory(checkpoint)
    for length in lengths:
        if length < 16 or length & (length - 1):
            raise OptionError(f"--lengths must be powers of two, at least 16, got {length}")
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.decoding.sampling import Decoding
    from t5x_lite.inference.answers import Asked as Answers
    from t5x_lite.serve import server
    from t5x_lite.serve.batching import Limits
    from t5x_lite.serve.endpoints import Asked

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
        server.serve(
            checkpoint,
            address=server.Address(host=host, port=port, token_file=token_file),
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


CHUNK_BATCHES = 32
"""Number of batches per chunk of texts that is encoded and written together."""


class Chunk(NamedTuple):
    """Some input records of a file, with the token ids of their texts."""

    records: list["TextRecord"]
    rows: list["np.ndarray"]


@command
def embed(
    checkpoint: Directory,
    *,
    input: File,
    output: File,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: RowModules = NO_ROW_MODULES,
    format: Literal["auto", "text", "jsonl", "tsv"] = "auto",
    pooling: OptionalPooling = None,
    normalize: bool | None = None,
    dimensions: OptionalPositive = None,
    precision: Literal["float32", "float16", "int8", "binary"] = "float32",
    ranges: OptionalFile = None,
    prefix: OptionalText = None,
    prompt: OptionalText = None,
    role: Literal["query", "passage"] = "query",
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    long_inputs: LongInputs = "cut",
    longest_line: Positive = LONGEST_LINE,
    bag_top: Natural = 0,
    heads: Texts = ("dense",),
    mcls: OptionalPositive = None,
    vector_numbers: Literal["float16", "int8", "float32"] = "float16",
    shard: Annotated[OptionalText, Formerly("part")] = None,
    compute_dtype: Literal["float32", "bfloat16"] | None = None,
    text: Text = "{text}",
    trust_project: bool = False,
) -> Path:
    """Encode texts as vectors: text files, JSON lines or tables become .npy or .parquet files.

    Each batch is divided among all devices. The output appears when it is complete. If the command
    is killed, run it again to resume; with standard input or a .parquet output it starts again.
    In JSON lines, the field "adapter" names the adapter of a text.

    Example:
        t5x-lite embed --checkpoint work/encoder --input corpus.jsonl --output corpus.npy

    Args:
      checkpoint: work directory or checkpoint directory of the encoder.
      input: input texts: a file with one text per line; JSON lines {"text"}, optionally with
        "title" and "_id", such as BEIR's corpus.jsonl; tab-separated passages, such as MS MARCO's
        collection.tsv and DPR's psgs_w100.tsv; Parquet or Arrow files; a directory or file pattern;
        hf://NAME or tfds://NAME; "-" reads standard input.
      output: output file: FILE.npy, float32 [N, D] in the order of the input, or FILE.parquet with
        columns id and vector (needs pyarrow); an existing file is replaced.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      format: format of the input file; "auto" infers the format from the file name.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting, or mean with a warning.
      normalize: scale vectors to length 1; default: the checkpoint's setting, or True if it has
        none.
      dimensions: number of leading dimensions of each vector to keep, for models trained with a
        Matryoshka loss; default: all.
      precision: data type of dense vectors in a .npy file: float32, float16, int8 (256 levels from
        the minimum to the maximum of each dimension, which are stored in FILE.npy.ranges) or binary
        (only the signs, as uint8 [N, D / 8]).
      ranges: vector file (.npy or .parquet) that sets the minimum and maximum of each dimension for
        --precision int8; default: the minimum and maximum of the new vectors.
      prefix: text put before every input, such as "query: "; default: the checkpoint's prompt.
      prompt: name of the checkpoint's prompt to put before every text, such as query or document;
        default: the checkpoint's default prompt, if any.
      role: kind of the texts, query or passage, for a retriever with different encoders or
        projections of queries and passages.
      batch_size: number of texts per batch.
      inputs_length: maximum number of tokens of a text; default: the length in the checkpoint's
        config (for a run on pairs, the larger of its two lengths).
      long_inputs: treatment of texts longer than --inputs-length: "cut" truncates them with a
        warning, "refuse" stops with an error.
      longest_line: maximum length of an input line in bytes; a longer line is an error.
      bag_top: number of nonzero values of DupMAE's bag of words (the maximum logit of each
        vocabulary token over the text), which is appended to the [CLS] hidden state; 0 appends
        nothing.
      heads: outputs per text: dense (one vector), lexical (a weight per token) and multi_vector (a
        vector per token). If dense is the only one, --output is a file; otherwise it is a new
        directory with ids.txt, dense.npy, lexical.jsonl and multi_vector.npy, for `t5x-lite
        hybrid`.
      mcls: number of tokens after which another [CLS] token is inserted; the vector is then the
        mean of all [CLS] hidden states (BGE-M3 uses 256 for long texts); default: one [CLS] token
        per text.
      vector_numbers: data type of the token vectors of --heads multi_vector: float16, float32, or
        int8 with a scale per vector.
      shard: shard of the texts to encode, as I/N, such as 2/8 for the second of 8 shards, to divide
        the texts among N hosts; search takes the vector files of all shards, in order; default: all
        texts.
      compute_dtype: data type of the activations; default: the data type used in training.
      text: name of the column with the text in JSON lines and tables, or a template with column
        names in braces; the default "{text}" puts the title, if any, before the text.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The path of the written file or directory.

    Raises:
      InputError: if the checkpoint or an input line is invalid, the checkpoint has no encoder, or a
        vector is NaN or infinite; an existing output does not change then.
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.core.jobs import resumable_directory
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.core.workers import Prefetch
    from t5x_lite.data.formats.documents import as_template
    from t5x_lite.data.formats.pairs import Share
    from t5x_lite.data.formats.vectors import Writer, ranges_of, vector_writer
    from t5x_lite.inference.checkpoint import Checkpoint, identity_of_step
    from t5x_lite.inference.loading import find_step

    share = None if shard is None else Share.of_text(shard)
    several = tuple(heads) != ("dense",)
    if "dense" not in heads and precision != "float32":
        raise InputError(
            f"--precision {precision} is for dense vectors, but --heads has no dense; remove one "
            "of the options"
        )
    if ranges is not None and precision != "int8":
        raise InputError(f"--ranges needs --precision int8, got --precision {precision}")
    if precision == "int8" and ranges is None and share is not None and share.number > 1:
        raise InputError(
            f"--precision int8 with --shard {shard} needs --ranges, so that all shards have the "
            "same ranges; give the file of the first shard"
        )
    limits = None if ranges is None else ranges_of(ranges)
    _check_heads(heads, bag_top=bag_top, mcls=mcls, role=role)
    _check_files(input, output, is_directory=several)
    with trusting_checkpoints(trust_project), base_at(base):
        directory = find_step(checkpoint, step=step)
        template = as_template(text)
        read = functools.partial(
            _read_place, input, format=format, longest=longest_line, template=template
        )
        records, total = read(), None
        size = CHUNK_BATCHES * batch_size
        if share is not None:
            if several or input == "-":
                raise InputError(
                    "--shard is supported only with an input file and --heads dense; give the "
                    "file by --input, and set --heads dense"
                )
            bounds = share.bounds(sum(1 for _ in read()), whole=size, what="texts")
            records, total = itertools.islice(records, *bounds), bounds[1] - bounds[0]
        identity = {
            "command": "embed",
            "inputs": _identity_of_place(input),
            "checkpoint": identity_of_step(directory),
            "base": base,
            "adapters": {k: x for k, x in asdict(adapters).items() if k != "load" or x},
            "format": format,
            "text": text,
            "prefix": prefix,
            "prompt": prompt,
            "part": shard,
            "inputs_length": inputs_length,
            "long_inputs": long_inputs,
            "pooling": pooling,
            "normalize": normalize,
            "role": role,
            "bag_top": bag_top,
            "heads": [*heads],
            "mcls": mcls,
            "vector_numbers": vector_numbers,
            "compute_dtype": compute_dtype,
            "batch_size": batch_size,
            **({} if dimensions is None else {"dimensions": dimensions}),
            **({} if precision == "float32" else {"precision": precision}),
            **({} if limits is None else {"ranges": limits.tolist()}),
        }
        known = None if input == "-" or Path(input).is_fifo() else identity
        with contextlib.ExitStack() as stack:
            file: VectorWriter | Writer
            if several:
                made = (
                    new_directory(output)
                    if known is None
                    else resumable_directory(output, identity=known, content="vectors")
                )
                file = stack.enter_context(
                    Writer(
                        stack.enter_context(made),
                        numbers=vector_numbers,
                        precision=precision,
                        ranges=limits,
                    )
                )
                total = _num_lines(input)
            else:
                file = stack.enter_context(
                    vector_writer(
                        output, identity=known, chunk=size, precision=precision, ranges=limits
                    )
                )
            records = itertools.islice(records, file.done, None)
            first = next(records, None)  # a wrong input is seen before a large model is loaded
            if first is None and not file.done:
                raise InputError(f"input {input} contains no text")
            model = Checkpoint.load(
                [str(directory)],
                use=adapters.use,
                adapters=adapters.load,
                mesh=make_mesh(MeshConfig()),
                inputs_length=inputs_length,
                compute_dtype=compute_dtype,
            )
            encoder = model.encoder(pooling=pooling, normalize=normalize, dimensions=dimensions)
            cut, numbers = Cutter(encoder, long_inputs, mcls=mcls), ""
            left = records if first is None else itertools.chain([first], records)
            chunks = _chunks(left, cut, prefix=encoder.begins_with(prefix, prompt), size=size)
            ahead = stack.enter_context(contextlib.closing(Prefetch(chunks, depth=2)))
            progress = counting(
                "embedding", unit="texts", total=total or _num_lines(input), done=file.done
            )
            advance = stack.enter_context(progress)
            if isinstance(file, Writer):
                embedder = encoder.head_embedder(heads, batch_size=batch_size)
                _write_heads(file, ahead, embedder, encoder.params, advance, mcls=mcls is not None)
            else:
                vectors_of = _vectors_of(
                    model, encoder, batch_size=batch_size, bag_top=bag_top, mcls=mcls, role=role
                )
                for chunk in ahead:
                    vectors = vectors_of(chunk)
                    _check_finite(vectors, chunk.records)
                    file.write([record.id for record in chunk.records], vectors)
                    numbers = f" of {vectors.shape[1]} dimensions"
                    advance(len(vectors))
            done = file.done
    cut.report()
    if several:
        _logger.info(
            "%s: encoded %d texts with the encoder heads %s", output, done, ", ".join(heads)
        )
        return Path(output)
    _logger.info(
        "%s: wrote %d vectors%s (pooling %s, %s)",
        output,
        done,
        numbers,
        encoder.vectors.pooling,
        "scaled to length 1" if encoder.vectors.normalize else "not normalized",
    )
    return Path(output)


def _identity_of_place(place: str) -> list[Any]:
    from t5x_lite.core.jobs import identity_of_file
    from t5x_lite.data.formats.documents import TFDS
    from t5x_lite.data.tasks.unsupervised import shards_of

    if place == "-" or place.startswith(TFDS):
        return [place]
    return [identity_of_file(str(shard)) for shard in shards_of(place)]


def _read_place(
    place: str, *, format: "PassageFormat", longest: int, template: str
) -> Iterator["TextRecord"]:
    from t5x_lite.data.formats.documents import TFDS, is_named
    from t5x_lite.data.formats.pairs import TextRecord, read_texts
    from t5x_lite.data.tasks.text_source import texts_of
    from t5x_lite.data.tasks.unsupervised import shards_of

    if place.startswith(TFDS):
        for number, text in enumerate(texts_of(place, template=template)):
            yield TextRecord(f"{place}: example {number + 1}", str(number), text)
        return
    shards = [place] if place == "-" else shards_of(place)
    if len(shards) == 1:
        shard = place if not is_named(place) and os.path.isfile(place) else shards[0]
        yield from read_texts(shard, format=format, longest=longest, template=template)
        return
    number = 0
    for shard in shards:
        records = read_texts(shard, format=format, longest=longest, template=template)
        for place_in_shard, record in enumerate(records):
            is_number = record.id == str(place_in_shard)
            yield record._replace(id=str(number)) if is_number else record
            number += 1


def _num_lines(place: str) -> int | None:
    from t5x_lite.data.formats.documents import is_named, kind_of
    from t5x_lite.data.formats.lines import count_lines

    if is_named(place) or (place != "-" and kind_of(place) == "table"):
        return None
    return count_lines(place)


def _vectors_of(
    model: "Checkpoint",
    encoder: "TextEncoder",
    *,
    batch_size: int,
    bag_top: int,
    mcls: int | None,
    role: "Role",
) -> "Callable[[Chunk], np.ndarray]":
    @functools.cache
    def of_encoder(by_row: bool) -> "tuple[TextEncoder, Embedder]":
        own = model.by_row().encoder(**asdict(encoder.vectors)) if by_row else encoder
        return own, own.embedder(batch_size=batch_size, bag_top=bag_top)

    def vectors(chunk: Chunk) -> "np.ndarray":
        names, places = zip(*((each.adapter, each.where) for each in chunk.records), strict=True)
        _, ids = model.for_rows(names, where=places)
        own, embedder = of_encoder(ids is not None)
        return embedder.run(own.params, chunk.rows, role=role, adapter_ids=ids)

    if mcls is None:
        return vectors
    by_head = encoder.head_embedder(("dense",), batch_size=batch_size)

    def vectors_of_several_cls(chunk: Chunk) -> "np.ndarray":
        _check_no_adapter(chunk)
        found = by_head.several(encoder.params, chunk.rows, mcls=True).dense
        assert found is not None
        return found

    return vectors_of_several_cls


def _check_no_adapter(chunk: Chunk) -> None:
    named = next((record for record in chunk.records if record.adapter), None)
    if named is not None:
        raise InputError(
            f'{named.where}: "adapter" is not supported with --mcls or several --heads; choose one '
            "adapter for all texts by --adapters.use"
        )


def _write_heads(
    file: "Writer",
    chunks: Iterable[Chunk],
    embedder: "HeadEmbedder",
    params: "Params",
    advance: Callable[[int], None],
    *,
    mcls: bool,
) -> None:
    for chunk in chunks:
        _check_no_adapter(chunk)
        found = embedder.several(params, chunk.rows, mcls=mcls)
        for vectors in (found.dense, *(found.vectors or ())):
            if vectors is not None:
                _check_finite(vectors, chunk.records)
        ids = [record.id for record in chunk.records]
        file.write(ids, dense=found.dense, terms=found.terms, vectors=found.vectors)
        advance(len(ids))


class Cutter:
    """Tokenizer of texts that truncates long texts or rejects them, and counts truncated texts.

    Args:
      encoder: encoder that defines the vocabulary and the maximum length of a text.
      long_inputs: "cut" truncates longer texts; "refuse" rejects them.
      mcls: number of tokens between inserted [CLS] tokens; None inserts one [CLS] per text.
    """

    def __init__(self, encoder: "TextEncoder", long_inputs: LongInputs, *, mcls: int | None = None):
        self._encoder, self._mcls = encoder, mcls
        self._refuses = long_inputs == "refuse"
        self._num = 0

    def chunk(self, records: list["TextRecord"], *, prefix: str) -> Chunk:
        """Return records with the token ids of their texts; `prefix` is put before each text.

        Raises:
          InputError: if a text is too long and `long_inputs` is "refuse".
        """
        rows, longer = self._encoder.rows(
            [prefix + record.text for record in records], mcls=self._mcls
        )
        if longer and self._refuses:
            raise InputError(
                f"{records[longer[0]].where}: the text is longer than {self._encoder.length} "
                "tokens; shorten it, raise --inputs-length, or set --long-inputs cut to "
                "truncate it"
            )
        if longer and not self._num:
            _logger.warning(
                "%s: truncating this text and all further long texts to %d tokens "
                "(--inputs-length)",
                records[longer[0]].where,
                self._encoder.length,
            )
        self._num += len(longer)
        return Chunk(records, rows)

    def report(self) -> None:
        """Log the number of truncated texts, if more than one was truncated."""
        if self._num > 1:
            _logger.warning("truncated %d texts that were longer than --inputs-length", self._num)


def _chunks(
    records: Iterator["TextRecord"], cutter: Cutter, *, prefix: str, size: int
) -> Iterator[Chunk]:
    while some := list(itertools.islice(records, size)):
        yield cutter.chunk(some, prefix=prefix)


def _check_heads(heads: Sequence[str], *, bag_top: int, mcls: int | None, role: "Role") -> None:
    if not heads or len(set(heads)) < len(heads):
        raise InputError(
            f"--heads must be one or more different names, got {', '.join(heads) or 'none'}"
        )
    apart = tuple(heads) != ("dense",) or mcls is not None
    if apart and (bag_top or role != "query"):
        raise InputError(
            "--bag-top and --role passage cannot be combined with --mcls or with --heads other "
            "than dense"
        )


def _check_files(input: str, output: str, *, is_directory: bool = False) -> None:
    if is_directory:
        return  # the directory's job checks it
    from t5x_lite.data.formats.vectors import check_vector_file

    check_vector_file(output)
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise InputError(f"output {output} cannot be written, because {folder} is not a directory")
    if Path(output).is_dir():
        raise InputError(
            f"output {output} cannot be written, because it is a directory; give the path of a file"
        )
    both = input != "-" and Path(input).exists() and Path(output).exists()
    if both and os.path.samefile(input, output):
        raise InputError(f"--input and --output are the same file, {input}; give another --output")


def _check_finite(vectors: "np.ndarray", records: list["TextRecord"]) -> None:
    import numpy as np

    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if broken.size:
        raise InputError(
            f"{records[broken[0]].where}: the vector of this text is NaN or infinite; check the "
            "checkpoint's weights, or set --compute-dtype float32"
        )
