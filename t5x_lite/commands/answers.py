"""Commands that use a checkpoint on a file: predict, score."""

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
    """Answer inputs: JSON lines {"inputs"} to {"inputs", "prediction"}.

    A line with "adapter" is answered by that adapter; lines of different adapters share batches.

    An encoder answers by its head. A classifier reads {"inputs"}, or {"inputs", "second"} for a
    pair, a tagger {"inputs"}, multiple choice {"inputs", "choices"}, and extractive question
    answering {"question", "context"}.

    A model that writes text is greedy, unless --num-beams or --temperature are given; it reads an
    empty input as a single end-of-sequence token. The same command resumes after a kill; an
    output that exists is replaced when the new one is complete.

    Example:
        t5x-lite predict --checkpoint work/reviews --input inputs.jsonl --output answers.jsonl

    Args:
      checkpoint: a work directory or a checkpoint directory; several are an ensemble, which
        averages their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: step number of the checkpoint in a work directory, or best for the run's best
        checkpoint; default: the newest.
      base: directory of the base model, for a checkpoint that holds only trained parameters;
        default: the recorded base.
      adapters: the adapters to use.
      prompt: text that every prediction begins with; a line's own field "prompt" replaces it.
      batch_size: inputs decoded at once.
      inputs_length: maximum tokens of an input, or of a prompt; longer prompts are rejected;
        default: the config's data.inputs_length.
      long_inputs: "cut" truncates longer inputs and warns; "refuse" rejects them.
      longest_line: maximum bytes of a line; longer lines are rejected before they are read.
      max_decode_length: maximum tokens of a prediction, without its prompt.
      num_beams: width of the beam search; 1 disables it.
      length_rule: length normalization of beam scores: T5X's (t5x) or transformers' (hf).
      length_penalty: exponent of the length rule; default: 0.6 for t5x and 1.0 for hf.
      early_stopping: with length rule hf, stop at num_beams finished outputs (True), when no better
        beam is likely (False), or when no better beam is possible (never).
      num_return: number of predictions per input; if it is above 1, each line holds a list
        "predictions", best first.
      temperature: sampling temperature, at least 1e-6; 0 takes the likeliest token.
      top_k: samples among the K likeliest tokens; 0 uses all.
      top_p: nucleus sampling: keeps the smallest set of tokens with probability X; 1 keeps all.
      min_p: samples only tokens with at least X times the probability of the likeliest token.
      seed: random seed for sampling, below 2**32. Each line is sampled by this seed and its line
        number, or by its own field "seed".
      min_length: minimum tokens of a prediction.
      no_repeat_ngram: forbids repeated sequences of N tokens in a prediction and its prompt; 0
        allows repeats.
      head: name of the head that predicts, for an encoder with several heads.
      probabilities: writes the probability of each label or choice.
      threshold: minimum probability of a label in multi-label classification; default: 0.5.
      doc_stride: overlap of the windows of a long text, in tokens; default: 128 for question
        answering; a tagger truncates instead.
      longest_answer: maximum tokens of an answer span; default: 15.
      impossible_answers: allows the empty answer "", as in SQuAD 2.0.
      trust_project: lets a checkpoint's config run your own classes, not only those in t5x_lite.

    Raises:
      InputError: the checkpoint or a line is wrong, or the score of a prediction is not a number;
        the output is not written then.
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
    """Log-likelihood of targets: JSON lines {"inputs", "targets"} get "log_likelihood".

    The log-likelihood is a sum over the targets' tokens and their end; "num_tokens" counts them. An
    empty string is encoded as a single end-of-sequence token. The same command resumes after a
    kill; an output that exists is replaced when the new one is complete.

    Example:
        t5x-lite score --checkpoint work/t5 --input pairs.jsonl --output scores.jsonl

    Args:
      checkpoint: a work directory or a checkpoint directory; several are an ensemble, which
        averages their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: step number of the checkpoint in a work directory, or best for the run's best
        checkpoint; default: the newest.
      base: directory of the base model, for a checkpoint that holds only trained parameters;
        default: the recorded base.
      adapters: the adapters to use.
      candidates: a file with one candidate per line. Each input line {"inputs"} gets "prediction",
        the likeliest candidate, and "scores", the log-likelihood of each candidate.
      batch_size: examples scored at once.
      inputs_length: maximum tokens of an input; default: the config's data.inputs_length.
      targets_length: maximum tokens of a target, including EOS; default: unlimited. The
        log-likelihood of a truncated target covers only the tokens that remain.
      long_inputs: "cut" truncates longer inputs and targets and warns; "refuse" rejects them.
      longest_line: maximum bytes of a line; longer lines are rejected before they are read.
      trust_project: lets a checkpoint's config run your own classes, not only those in t5x_lite.

    Raises:
      InputError: the checkpoint or a line is wrong; the output is not written then.
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
