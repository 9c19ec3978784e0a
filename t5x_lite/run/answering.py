"""`t5x-lite predict` and `t5x-lite score`: JSON lines through a checkpoint, without TensorFlow.

Files of any size stream through in constant memory, a chunk of batches at a time. Between two
ordinary files a command that was killed goes on where it stopped (`t5x_lite.records.resumable`).
"""

import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.decoding.config import Decoding
from t5x_lite.errors import InputError
from t5x_lite.evaluate.rank import Ranker
from t5x_lite.files import LONGEST_LINE
from t5x_lite.heads.base import Head
from t5x_lite.inference.answers import Asked, check_record, head_for
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import read_experiment
from t5x_lite.interop.encoder_families import is_encoder
from t5x_lite.options import suggesting
from t5x_lite.progress import counting, waiting
from t5x_lite.records import json_lines
from t5x_lite.records.json_lines import Line
from t5x_lite.records.lines import count_lines, read_lines
from t5x_lite.records.resumable import ResumableWriter, is_resumable, resumable_writer
from t5x_lite.remote import AnyPath
from t5x_lite.run.best_step import Step
from t5x_lite.run.long_texts import InputReader, LongInputs, TargetReader
from t5x_lite.run.text_to_text import TextToText, check_finite, find_steps

_logger = logging.getLogger(__name__)

CHUNK_BATCHES = 32
"""Batches that are held at a time; their lines are sorted by length and so padded little."""

Change = Callable[[Sequence[Line], int], Iterator[dict[str, Any]]]
"""(lines, number of the first of them in the file) -> what is written for each."""


@suggesting
def predict(
    checkpoints: Sequence[str],
    *,
    step: Step = None,
    use: str | None = None,
    input: str,
    output: str,
    prompt: str = "",
    batch_size: int = 32,
    inputs_length: int | None = None,
    long_inputs: LongInputs = "cut",
    longest_line: int = LONGEST_LINE,
    decoding: Decoding | None = None,
    head: str | None = None,
    asked: Asked | None = None,
) -> None:
    """Answers the inputs of a file: JSONL {"inputs"} -> {"inputs", "prediction"}, in order.

    An encoder answers by one of its heads; `inference.answers` lists the fields of each head.

    A prediction includes its prompt. With num_return above 1, "predictions" lists them all, best
    first, as {"text", "score"}. What is sampled for a line depends on its number in the file (blank
    lines do not count), and not on its batch; a line with a "seed" of its own, a whole number, gets
    what the first line of a file gets by that seed.

    Args:
      checkpoints: a work directory or a step directory; several are an ensemble.
      step: the step to take from work directories: its number, "best", or None for the newest.
      use: names of modules, with commas between; "" is the base alone, None all of the checkpoint.
      input: a file, or "-"; a line's own "prompt" takes the place of `prompt`.
      output: a file, or "-"; other fields of a line are kept. A file that is there is replaced
        when the new one is whole, and the log says so before the work.
      prompt: what every prediction begins with.
      batch_size: inputs decoded at once.
      inputs_length: tokens of an input at most, and of a prompt, which is refused if it is longer;
        None is the config's.
      long_inputs: whether longer inputs are cut, with a warning, or refused.
      longest_line: bytes of a line at most.
      decoding: how; None is greedy.
      head: of an encoder; None is the one that its objective trained, or the only one.
      asked: options of an encoder's answers; None is the defaults.

    Raises:
      InputError: the checkpoint or a line is wrong, or the score of a prediction is no number; the
        output is not written then.
    """
    how = Decoding() if decoding is None else decoding
    steps = find_steps(checkpoints, step=step)
    reader = InputReader(long_inputs)
    own = _head(steps, head, asked, decoding=how, prompt=prompt)
    if own is not None:
        _answer(
            steps,
            own,
            asked or Asked(),
            use=use,
            input=input,
            output=output,
            batch_size=batch_size,
            inputs_length=inputs_length,
            long_inputs=long_inputs,
            longest_line=longest_line,
        )
        return

    def load() -> Change:
        model = TextToText.load(steps, use=use, inputs_length=inputs_length)
        generator = model.generator(how, batch_size=batch_size)

        def answer(lines: Sequence[Line], first: int) -> Iterator[dict[str, Any]]:
            inputs = reader.tokens(model, lines)
            prompts = model.prompts(
                [line.record.get("prompt", prompt) for line in lines],
                names=[line.where for line in lines],
            )
            seeds = [line.record.get("seed") for line in lines]
            found = model.predictions(generator, inputs, prompts=prompts, seeds=seeds, offset=first)
            for line, predictions in zip(lines, found, strict=True):
                check_finite(line.where, "the score", *(one.score for one in predictions))
                record = {**line.record, "prediction": predictions[0].text}
                if how.num_return > 1:
                    record["predictions"] = [
                        {"text": one.text, "score": one.score} for one in predictions
                    ]
                yield record

        return answer

    _stream(
        input,
        output,
        fields=("inputs",),
        optional=("prompt",),
        numbers=("seed",),
        longest=longest_line,
        chunk=CHUNK_BATCHES * batch_size,
        identity=_identity(
            "predict",
            input,
            steps,
            use=use,
            prompt=prompt,
            inputs_length=inputs_length,
            long_inputs=long_inputs,
            decoding=dataclasses.asdict(how),
        ),
        load=load,
    )
    reader.report()


def _head(
    steps: Sequence[AnyPath],
    name: str | None,
    asked: Asked | None,
    *,
    decoding: Decoding,
    prompt: str,
) -> Head | None:
    """The head that answers, if the checkpoint is an encoder; nothing large is read.

    Raises:
      InputError: if it has no such head, or an option is for models of another kind.
    """
    first, *others = steps
    experiment = read_experiment(first, checkpointing.step_files(first))
    if not is_encoder(experiment.model):
        if name is not None or asked not in (None, Asked()):
            raise InputError(
                f"checkpoint {first}: {type(experiment.model).__name__.removesuffix('Config')} "
                "writes text; options of heads (--head, --probabilities, --threshold, "
                "--doc-stride, --longest-answer, --impossible-answers) are for encoders"
            )
        return None
    head = head_for(experiment, name, where=first)
    if others:
        raise InputError("an ensemble has no head in common; give one --checkpoint")
    if decoding != Decoding() or prompt:
        raise InputError(
            f"checkpoint {first} answers by its head {head.name!r}; remove --prompt and the "
            "options of searching and sampling, which are for models that write text"
        )
    (asked or Asked()).check(head, where=first)
    return head


def _answer(
    steps: Sequence[AnyPath],
    head: Head,
    asked: Asked,
    *,
    use: str | None,
    input: str,
    output: str,
    batch_size: int,
    inputs_length: int | None,
    long_inputs: LongInputs,
    longest_line: int,
) -> None:
    """Answers the lines of a file by a head."""
    reader = InputReader(long_inputs)

    def load() -> Change:
        model = Checkpoint.load(steps, use=use, inputs_length=inputs_length)
        answerer = model.answerer(batch_size=batch_size, head=head.name, asked=asked)

        def answer(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
            encoded = answerer.encode([line.record for line in lines])
            cut = [place for place, one in enumerate(encoded) if one.cut]
            reader.tell(lines, cut, length=answerer.length)
            for line, found in zip(lines, answerer.answers(encoded), strict=True):
                yield {**line.record, **found}

        return answer

    _stream(
        input,
        output,
        fields=(),
        check=lambda line: check_record(head, line.record, where=line.where),
        longest=longest_line,
        chunk=CHUNK_BATCHES * batch_size,
        identity=_identity(
            "predict",
            input,
            steps,
            use=use,
            head=head.name,
            inputs_length=inputs_length,
            long_inputs=long_inputs,
            asked=dataclasses.asdict(asked),
        ),
        load=load,
    )
    reader.report()


@suggesting
def score(
    checkpoints: Sequence[str],
    *,
    step: Step = None,
    use: str | None = None,
    input: str,
    output: str,
    candidates: str | None = None,
    batch_size: int = 32,
    inputs_length: int | None = None,
    targets_length: int | None = None,
    long_inputs: LongInputs = "cut",
    longest_line: int = LONGEST_LINE,
) -> None:
    """Scores given targets: JSONL {"inputs", "targets"} gets "log_likelihood", "num_tokens".

    With `candidates` every line gets "prediction", the likeliest of them, and "scores", their
    log-likelihoods in the file's order; "targets" are not needed then, nor scored. An empty string
    is encoded as the end-of-sequence token alone.

    Args:
      checkpoints: a work directory or a step directory; several are an ensemble.
      step: the step to take from work directories: its number, "best", or None for the newest.
      use: names of modules, with commas between; "" is the base alone, None all of the checkpoint.
      input: a file, or "-".
      output: a file, or "-".
      candidates: a file with one candidate a line, or "-".
      batch_size: targets scored at once.
      inputs_length: tokens of an input at most; None is the config's.
      targets_length: tokens of a target at most, its end included; None is no limit, so that a
        log-likelihood is that of the whole target. Of one that is cut, it is that of its beginning.
      long_inputs: whether longer inputs and targets are cut, with a warning, or refused.
      longest_line: bytes of a line at most.

    Raises:
      InputError: the checkpoint or a line is wrong; the output is not written then.
    """
    steps = find_steps(checkpoints, step=step)
    reader = InputReader(long_inputs)
    cutter = TargetReader(long_inputs, targets_length)
    texts = (
        None
        if candidates is None
        else _read_candidates(candidates, input=input, longest=longest_line)
    )

    def load() -> Change:
        model = TextToText.load(steps, use=use, inputs_length=inputs_length)
        if texts is None:
            return _scoring(model, reader, cutter, batch_size=batch_size)
        return _ranking(model, reader, cutter, texts, batch_size=batch_size)

    _stream(
        input,
        output,
        fields=("inputs", "targets") if texts is None else ("inputs",),
        longest=longest_line,
        chunk=CHUNK_BATCHES * batch_size,
        identity=_identity(
            "score",
            input,
            steps,
            use=use,
            candidates=texts,
            inputs_length=inputs_length,
            targets_length=targets_length,
            long_inputs=long_inputs,
        ),
        load=load,
        steps=texts is None,  # each line of a ranking is as many rows as there are candidates
    )
    reader.report()
    cutter.report()


def _scoring(
    model: TextToText, reader: InputReader, cutter: TargetReader, *, batch_size: int
) -> Change:
    scorer = model.scorer(batch_size=batch_size)

    def add_score(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        targets = cutter.tokens(
            model,
            [line.record["targets"] for line in lines],
            names=[f"{line.where}: the target" for line in lines],
        )
        values = scorer.run(model.params, reader.tokens(model, lines), targets)
        for line, ids, value in zip(lines, targets, values, strict=True):
            check_finite(line.where, "the log-likelihood", value)
            yield {**line.record, "log_likelihood": value, "num_tokens": len(ids)}

    return add_score


def _ranking(
    model: TextToText,
    reader: InputReader,
    cutter: TargetReader,
    texts: Sequence[str],
    *,
    batch_size: int,
) -> Change:
    ranker = Ranker(model.scorer(batch_size=batch_size))
    candidates = cutter.tokens(
        model, texts, names=[f"the candidate {text[:40]!r}" for text in texts]
    )

    def add_ranks(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        found = ranker.run(model.params, reader.tokens(model, lines), candidates)
        for line, values in zip(lines, found, strict=True):
            check_finite(line.where, "the log-likelihood", *values)
            yield {**line.record, "prediction": texts[int(np.argmax(values))], "scores": values}

    return add_ranks


def _read_candidates(path: str, *, input: str, longest: int) -> list[str]:
    """The lines of a file that are not blank.

    Raises:
      InputError: there are none, one comes twice, or the file cannot be read.
    """
    if path == input == "-":
        raise InputError("--input and --candidates cannot both be standard input")
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines([path], longest=longest), start=1):
        text = line.strip()
        if text in found:
            raise InputError(f"{path}:{number}: the same candidate as in line {found[text]}")
        if text:
            found[text] = number
    if not found:
        raise InputError(f"{path}: no candidate to rank; write one a line")
    return list(found)


def _identity(command: str, input: str, steps: Sequence[AnyPath], **options: Any) -> dict[str, Any]:
    """What makes a command the one that was killed: what it reads, and every option of it."""
    source = Path(input)
    known = source.stat() if source.is_file() else None
    return {
        "command": command,
        "input": os.path.realpath(input),
        "size": known and known.st_size,
        "modified": known and known.st_mtime_ns,
        "checkpoints": [_identity_of(step) for step in steps],
        **options,
    }


def _identity_of(step: AnyPath) -> list[Any]:
    if isinstance(step, Path):
        return [os.path.realpath(step), (step / "params").stat().st_mtime_ns]
    return [str(step), None]  # a bucket's folders have no time


def _stream(
    source: str,
    target: str,
    *,
    fields: Sequence[str],
    optional: Sequence[str] = (),
    numbers: Sequence[str] = (),
    check: Callable[[Line], None] = lambda line: None,
    longest: int = LONGEST_LINE,
    chunk: int,
    identity: dict[str, Any],
    load: Callable[[], Change],
    steps: bool = True,
) -> None:
    """Streams JSON lines through what `load` gives, a chunk at a time; `check` sees each first."""
    with _output(source, target, identity=identity | {"chunk": chunk}, chunk=chunk) as file:
        lines = json_lines.read_examples(
            source,
            fields=fields,
            optional=optional,
            numbers=numbers,
            skip=file.done,
            longest=longest,
        )
        checked = (line for line in lines if check(line) is None)
        chunks = iter(lambda: list(itertools.islice(checked, chunk)), [])
        first = next(chunks, None)  # a wrong input is seen before a large model is loaded
        number = file.done
        if first is None:
            if not number:
                raise InputError(
                    "standard input is empty" if source == "-" else f"{source}: no line to read"
                )
            return
        if target != "-" and os.path.isfile(target):
            _logger.info("%s exists: it is replaced when the new one is whole", target)
        with waiting("loading the checkpoint"):
            change = load()
        with counting(
            "answering", unit="lines", total=count_lines(source), done=number, steps=steps
        ) as advance:
            for some in itertools.chain([first], chunks):
                file.write(*change(some, number))
                number += len(some)
                if not steps:
                    advance(len(some))


def _output(
    source: str, target: str, *, identity: dict[str, Any], chunk: int
) -> contextlib.AbstractContextManager[ResumableWriter | json_lines.Writer]:
    """A file that is gone on with, or where input or output is a stream one that is not."""
    if is_resumable(target) and Path(source).is_file():
        return resumable_writer(target, identity=identity, chunk=chunk)
    return json_lines.writer(target)
