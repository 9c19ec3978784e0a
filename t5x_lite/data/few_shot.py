r"""Few-shot prompts: k examples of a task before each question (Brown et al. 2020, section 2).

    FewShot(examples=2, seeds=(0, 1), orders=2)        # four trials; each is evaluated

A prompt of two shown examples, with the default template and separator:

    sst2 sentence: a gem
    positive

    sst2 sentence: too long
    negative

    sst2 sentence: a moving and funny film

The shown examples depend only on the task, the seed and the order. All questions of a trial have
the same examples, with one exception: an example that equals the question is replaced by the next
sampled example. If a prompt is too long, examples are dropped from the front; the question is never
truncated to make space for examples.
"""

import dataclasses
import math
import zlib
from collections.abc import Sequence
from typing import Annotated, Protocol, runtime_checkable

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, OptionalCount, Whole, check_bounds
from t5x_lite.data.preprocessors import fill, places
from t5x_lite.layouts.base import FEW_SHOT, example_rng

_TEMPLATE = "{inputs}\n{targets}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    r"""Configuration of few-shot prompts: examples of a task that are shown before each question.

    Attributes:
      examples: number of examples in a prompt; 0 shows only the question.
      seeds: random seeds for sampling the examples; each seed is evaluated.
      orders: number of orders in which the examples of each seed are shown; each order is
        evaluated.
      templates: templates of an example, such as "Q: {inputs} A: {targets}"; each template is
        evaluated. The question uses the part before {targets}. \n is a new line. If empty,
        "{inputs}\n{targets}".
      separator: text between the examples; \n is a new line.
      split: split of the task from which the examples are sampled.
      pool: number of examples at the beginning of the split from which to sample; None uses all
        examples.
    """

    examples: Whole = 0
    seeds: Annotated[tuple[int, ...], AtLeast(0)] = (0,)
    orders: Count = 1
    templates: tuple[str, ...] = ()
    separator: str = "\n\n"
    split: str = "train"
    pool: OptionalCount = 100_000

    def __post_init__(self) -> None:
        check_bounds(self, prefix="evaluation.few_shot.")
        if not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise InputError(
                "evaluation.few_shot.seeds must be one or more different numbers, but is "
                f"{' '.join(map(str, self.seeds)) or 'none'}"
            )
        if self.examples and self.orders > math.factorial(min(self.examples, 20)):
            raise InputError(
                f"evaluation.few_shot.orders is {self.orders}, but {self.examples} examples have "
                f"only {math.factorial(self.examples)} orders"
            )
        if len({*self.templates}) < len(self.templates):
            raise InputError("evaluation.few_shot.templates has the same template twice")
        for template in self.wordings:
            _check_template(template)

    @property
    def is_on(self) -> bool:
        """True if the config changes the prompts of a task."""
        return self.examples > 0 or bool(self.templates)

    @property
    def wordings(self) -> tuple[str, ...]:
        """The templates, after replacing escape sequences by line breaks."""
        return tuple(_with_lines(each) for each in self.templates or (_TEMPLATE,))

    @property
    def trials(self) -> tuple["Trial", ...]:
        """The trials to evaluate: all combinations of seeds, orders and templates."""
        seeds, orders = (self.seeds, self.orders) if self.examples else ((0,), 1)
        return tuple(
            Trial(seed=seed, order=order, template=template)
            for seed in seeds
            for order in range(orders)
            for template in range(len(self.wordings))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One combination of seed, order and template of the few-shot examples.

    Attributes:
      seed: random seed for sampling the examples.
      order: index of the order of the examples, from 0.
      template: index of the template, from 0.
    """

    seed: int = 0
    order: int = 0
    template: int = 0


@runtime_checkable
class Shown(Protocol):
    """Protocol of an example that a few-shot prompt can show."""

    @property
    def inputs(self) -> str: ...
    @property
    def targets(self) -> str: ...


@runtime_checkable
class Encodes(Protocol):
    """Protocol of a vocabulary that encodes few-shot prompts."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """Few-shot prompt: the text that a model reads for one question.

    Attributes:
      text: the examples and the question.
      tokens: int32 [_], token ids of the text, including the ending, such as EOS.
      examples: number of few-shot examples in the text.
    """

    text: str
    tokens: np.ndarray
    examples: int


class Prompts:
    """Builder of the few-shot prompts of one task.

    Attributes:
      config: config of the prompts.
      length: maximum number of tokens of a prompt.

    Args:
      config: config of the prompts.
      pool: the examples to sample from, with different inputs.
      task: the task's name; part of the random seed.
      vocabulary: vocabulary of the inputs.
      length: maximum number of tokens of a prompt, including the ending.
      ending: tokens that end a prompt, such as EOS.
    """

    def __init__(
        self,
        config: FewShot,
        pool: Sequence[Shown],
        *,
        task: str,
        vocabulary: Encodes,
        length: int,
        ending: Sequence[int],
    ):
        self.config, self.length = config, length
        self._pool = pool
        self._task = task
        self._vocabulary = vocabulary
        self._room = max(0, length - len(ending))
        self._ending = list(ending)
        self._drawn: dict[int, list[int]] = {}

    def check(self, questions: Sequence[str]) -> None:
        """Raise InputError if the task has too few examples for a prompt of any question."""
        if len(self._pool) <= self.config.examples:
            for question in dict.fromkeys(questions):
                self._shown(Trial(seed=self.config.seeds[0]), question)

    def of(self, trial: Trial, questions: Sequence[str]) -> list[Prompt]:
        """Return the prompt of each question, with few-shot examples.

        Args:
          trial: seed, order and template of the few-shot examples; one of `config.trials`.
          questions: texts of the questions, in the form of the task's inputs.
        """
        shown = [self._written(trial, question) for question in questions]
        counts = [len(parts) - 1 for parts in shown]
        prompts: dict[int, Prompt] = {}
        pending, separator = list(range(len(questions))), _with_lines(self.config.separator)
        while pending:
            texts = [separator.join(shown[i][-counts[i] - 1 :]) for i in pending]
            encoded = self._vocabulary.encode_batch(texts)
            for i, text, ids in zip(pending, texts, encoded, strict=True):
                if len(ids) <= self._room or not counts[i]:
                    tokens = np.asarray([*ids[: self._room], *self._ending], np.int32)
                    prompts[i] = Prompt(text=text, tokens=tokens, examples=counts[i])
                else:
                    counts[i] -= 1
            pending = [i for i in pending if i not in prompts]
        return [prompts[i] for i in range(len(questions))]

    def _written(self, trial: Trial, question: str) -> list[str]:
        template = self.config.wordings[trial.template]
        asked = template.partition("{targets}")[0].rstrip()
        return [
            *(
                fill(template, {"inputs": one.inputs, "targets": one.targets})
                for one in self._shown(trial, question)
            ),
            fill(asked, {"inputs": question}),
        ]

    def _shown(self, trial: Trial, question: str) -> list[Shown]:
        number = self.config.examples
        if not number:
            return []
        if trial.seed not in self._drawn:
            rng = example_rng(trial.seed, 0, self._key, stream=FEW_SHOT)
            ranks = rng.random(len(self._pool)).argsort(kind="stable")
            self._drawn[trial.seed] = ranks[: number + 1].tolist()
        candidates = [self._pool[place] for place in self._drawn[trial.seed]]
        drawn = [one for one in candidates if one.inputs != question][:number]
        if len(drawn) < number:
            raise InputError(
                f"evaluation.few_shot.examples is {number}, but split {self.config.split!r} of "
                f"task {self._task} has only {len(drawn)} different examples other than the "
                "question"
            )
        return [drawn[place] for place in self._order(trial)]

    def _order(self, trial: Trial) -> list[int]:
        number, found = self.config.examples, [[*range(self.config.examples)]]
        attempt = 0
        while len(found) <= trial.order:
            attempt += 1
            rng = example_rng(trial.seed, attempt, self._key, stream=FEW_SHOT)
            order = rng.random(number).argsort(kind="stable").tolist()
            if order not in found:
                found.append(order)
        return found[trial.order]

    @property
    def _key(self) -> int:
        return zlib.crc32(self._task.encode())


def _with_lines(text: str) -> str:
    return text.replace("\\n", "\n")


def _check_template(template: str) -> None:
    """Raise InputError unless a template has {inputs} and then {targets}, once each."""
    before, _, after = template.partition("{targets}")
    found = "{inputs}" in before and "{inputs}" not in before.replace("{inputs}", "", 1)
    if not found or places(template) != ("inputs", "targets") or places(after):
        raise InputError(
            "evaluation.few_shot.templates must have {inputs} and after it {targets}, each "
            f"once, such as 'Q: {{inputs}} A: {{targets}}', but one is {template!r}"
        )
    fill(template, {"inputs": "", "targets": ""})
