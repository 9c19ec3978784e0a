"""Commands that apply a checkpoint to the lines of a file: predict, score."""

import dataclasses
from typing import Annotated, Literal

from t5x_lite.commands.command import command
from t5x_lite.commands.options import some_directory
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.option_types import (
    NO_ROW_MODULES,
    Directories,
    File,
    LongInputs,
    Natural,
    Number,
    OptionalDirectory,
    OptionalFile,
    OptionalNatural,
    OptionalNumber,
    OptionalPositive,
    OptionalText,
    Positive,
    RowModules,
    Step,
    Text,
)
from t5x_lite.core.options import In
from t5x_lite.core.project import trusting_checkpoints


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
      adapters: adapters of the checkpoint to use; default: all adapters.
      prompt: text that every prediction begins with; a field "prompt" of an input line replaces it.
      batch_size: number of inputs per batch.
      inputs_length: maximum number of tokens of an input or prompt; default: the length used in
        training. A longer prompt is an error.
      long_inputs: treatment of inputs longer than --inputs-length: "cut" truncates them with a
        warning, "refuse" stops with an error.
      longest_line: maximum length of an input line in bytes; a longer line is an error.
      max_decode_length: maximum number of tokens in a prediction, not counting its prompt.
      num_beams: number of beams of the beam search; 1 disables beam search.
      length_rule: normalization of beam scores by length, as in T5X (t5x) or transformers (hf).
      length_penalty: exponent of the length normalization of beam scores; default: 0.6 with
        --length-rule t5x, 1.0 with --length-rule hf.
      early_stopping: end of beam search with --length-rule hf: at num_beams finished outputs
        (True), when a better output is unlikely (False), or when a better output is impossible
        ("never").
      num_return: number of predictions per input; if it is above 1, each output line has a list
        "predictions", sorted from best to worst.
      temperature: sampling temperature, at least 1e-6; 0 always picks the most probable token.
      top_k: number of most probable tokens to sample from; 0 samples from all tokens.
      top_p: total probability of the tokens for nucleus sampling; 1 samples from all tokens.
      min_p: minimum probability of a sampled token, as a fraction of the most probable token's; 0
        sets no minimum.
      seed: random seed for sampling, below 2**32; a field "seed" of an input line replaces it.
      min_length: minimum number of tokens in a prediction.
      no_repeat_ngram: length of token sequences that must not repeat; 0 allows repetition.
      head: name of the encoder head that predicts; default: the trained head, or the only head.
      probabilities: add the probability of each label or choice to the output.
      threshold: minimum probability of a label in multi-label classification; default: 0.5.
      doc_stride: number of tokens that two neighboring windows of a long text share; default: 128
        for question answering, while a tagger truncates long texts.
      longest_answer: maximum number of tokens of an answer in question answering; default: 15.
      impossible_answers: allow the empty answer "" in question answering, as in SQuAD 2.0.
      trust_project: allow the checkpoint's config to import classes from outside of t5x_lite.

    Raises:
      InputError: if the checkpoint or an input line is invalid, or the score of a prediction is NaN
        or infinite; no output is written then.
    """
    some_directory(checkpoint)
    from t5x_lite.checkpoints.base import base_at
    from t5x_lite.decoding.config import Decoding
    from t5x_lite.inference import json_answers
    from t5x_lite.inference.answers import Asked, check_record
    from t5x_lite.inference.checkpoint import find_steps
    from t5x_lite.inference.json_answers import InputReader

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
      adapters: adapters of the checkpoint to use; default: all adapters.
      candidates: file with one candidate target per line; each input line {"inputs"} then gets
        "prediction", the most likely candidate, and "scores", the log-likelihood of each candidate.
      batch_size: number of examples per batch.
      inputs_length: maximum number of tokens of an input; default: the length used in training.
      targets_length: maximum number of tokens of a target, including EOS; the log-likelihood of a
        truncated target covers only the kept tokens; default: unlimited.
      long_inputs: treatment of inputs and targets that are too long: "cut" truncates them with a
        warning, "refuse" stops with an error.
      longest_line: maximum length of an input line in bytes; a longer line is an error.
      trust_project: allow the checkpoint's config to import classes from outside of t5x_lite.

    Raises:
      InputError: if the checkpoint or an input line is invalid; no output is written then.
    """
    some_directory(checkpoint)
    from t5x_lite.checkpoints.base import base_at
    from t5x_lite.inference import json_answers
    from t5x_lite.inference.checkpoint import Checkpoint, find_steps
    from t5x_lite.inference.json_answers import InputReader, TargetReader

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
