"""Commands that use a checkpoint on a file: predict, score."""

import dataclasses
from typing import Annotated, Literal

from t5x_lite.commands.command import command
from t5x_lite.commands.options import some_directory
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Directories,
    File,
    LongInputs,
    Modules,
    Natural,
    Number,
    OptionalDirectory,
    OptionalFile,
    OptionalNatural,
    OptionalNumber,
    OptionalPositive,
    OptionalText,
    Positive,
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
    adapters: Modules = ALL_MODULES,
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

    An encoder answers by its head. A classifier reads {"inputs"}, or {"inputs", "second"} for a
    pair, a tagger {"inputs"}, multiple choice {"inputs", "choices"}, and extractive question
    answering {"question", "context"}.

    A model that writes text is greedy, unless --num-beams or --temperature are given; it reads an
    empty input as a single end-of-sequence token. The same command resumes after a kill; an
    output that exists is replaced when the new one is complete.

    Example:
        t5x-lite predict --checkpoint work/reviews --input inputs.jsonl --output answers.jsonl

    Args:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: directory of the base, for a checkpoint with only trained parts; default: the recorded
        base.
      adapters: the adapters in use.
      prompt: beginning of every prediction; a line's own "prompt" replaces it.
      batch_size: inputs decoded at once.
      inputs_length: maximum tokens of an input, or of a prompt; longer prompts are rejected;
        default: the config's data.inputs_length.
      long_inputs: "cut" truncates longer inputs and warns; "refuse" rejects them.
      longest_line: maximum bytes of a line; a longer one is rejected before it is in memory.
      max_decode_length: maximum tokens of a prediction, without its prompt.
      num_beams: width of the beam search; 1 disables it.
      length_rule: rule that compares beams of different lengths: T5X's or transformers'.
      length_penalty: exponent of that rule; 0.6 for t5x and 1.0 for hf if not given.
      early_stopping: for the rule hf, whether the search stops at num_beams outputs (True), when no
        beam seems better (False), or when none could become better (never).
      num_return: predictions of each input; above 1 a line gets "predictions", best first.
      temperature: samples, from the logits divided by it, from 1e-6 on; 0 takes the likeliest
        token.
      top_k: samples among the K likeliest tokens; 0 uses all.
      top_p: nucleus sampling: keeps the smallest set of tokens with probability X; 1 keeps all.
      min_p: samples among tokens at least X times as probable as the likeliest.
      seed: random seed for sampling, below 2**32; a line's result depends only on the seed and its
        line number, or on the line's own "seed".
      min_length: minimum tokens of a prediction.
      no_repeat_ngram: no sequence of N tokens comes twice in a prediction and its prompt; the input
        does not count; 0 allows repeats.
      head: name of the head that answers, for an encoder with several.
      probabilities: lists the probability of each label, or of each choice.
      threshold: minimum probability of a label, for labels that do not exclude each other; 0.5 if
        not given.
      doc_stride: tokens that two windows of a long text share; if not given, 128 for a context, and
        a tagger cuts long texts.
      longest_answer: maximum tokens of an answer in a context; 15 if not given.
      impossible_answers: admits the answer "", as for SQuAD 2.0.
      trust_project: admits your own classes in a checkpoint's config and runs their modules;
        default: only classes of t5x_lite.

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
        same = {"use": adapters.use, "inputs_length": inputs_length}
        identity = {**same, "long_inputs": long_inputs}
        if own is not None:
            json_answers.stream(
                input,
                output,
                fields=(),
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
                optional=("prompt",),
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
    adapters: Modules = ALL_MODULES,
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
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: directory of the base, for a checkpoint with only trained parts; default: the recorded
        base.
      adapters: the adapters in use.
      candidates: a file with one candidate a line: lines {"inputs"} get "prediction", the likeliest
        of them, and "scores", the log-likelihood of each.
      batch_size: examples scored at once.
      inputs_length: maximum tokens of an input; default: the config's data.inputs_length.
      targets_length: maximum tokens of a target, its end included; unlimited if not given. A
        truncated target gets the log-likelihood of its beginning.
      long_inputs: "cut" truncates longer inputs and targets and warns; "refuse" rejects them.
      longest_line: maximum bytes of a line; a longer one is rejected before it is in memory.
      trust_project: admits your own classes in a checkpoint's config and runs their modules;
        default: only classes of t5x_lite.

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
            model = Checkpoint.load(steps, use=adapters.use, inputs_length=inputs_length)
            if texts is None:
                return json_answers.scoring(model, reader, cutter, batch_size=batch_size)
            return json_answers.ranking(model, reader, cutter, texts, batch_size=batch_size)

        json_answers.stream(
            input,
            output,
            fields=("inputs", "targets") if texts is None else ("inputs",),
            longest=longest_line,
            batch_size=batch_size,
            identity=json_answers.identity_of(
                "score",
                input,
                steps,
                use=adapters.use,
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
