"""Retrieval augmentation: the first passages of a run stand behind each input.

    Data(
        task="tasks.squad:closed_book",
        augment=Augment(run="runs/{split}.trec", passages="corpus.jsonl", k=3),
    )

turns the inputs "who wrote Emma" into

    question: who wrote Emma context: Emma Emma is a novel by Jane Austen. Jane Austen An author ...

A query of the run is the example's "id", or else its "idx": an id of SQuAD, TriviaQA or RACE, the
number of a row of GLUE, of SWAG and of your own tables (from 0), or data.columns.id. Passages are
"title text", best first. They lose words at their end until the whole row fits into
data.inputs_length, so that the question is never cut, wherever the template has it.

Source: Lewis et al. 2020, "Retrieval-Augmented Generation", section 2; the form of the text is that
of Izacard and Grave 2021, "Leveraging Passage Retrieval with Generative Models", section 3, with
all passages in one input.
"""

import dataclasses
from typing import Any, Literal

from t5x_lite.data.preprocess.templates import fill, places
from t5x_lite.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
    """Passages of a run behind each input.

    Attributes:
      run: a run of TREC's form, of MS MARCO's, or of JSON lines (`records.run_files`), whose
        queries are the ids of the examples; "{split}" in its path is train, validation or test. ""
        adds no passages.
      passages: the file with the passages that the run ranks (`records.passages`); several with
        commas between.
      k: passages of an example at most.
      template: the text of the inputs; {inputs} is the task's own, {passages} all passages.
      passage: the text of one passage, with {title} and {text}.
      missing: "error" refuses examples that the run lacks; "keep" shows them without passages, and
        logs their number.
    """

    run: str = ""
    passages: str = ""
    k: int = 3
    template: str = "question: {inputs} context: {passages}"
    passage: str = "{title} {text}"
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self):
        if self.k < 1:
            raise InputError(f"data.augment.k must be at least 1, got {self.k}")
        if bool(self.run) != bool(self.passages):
            raise InputError(
                "data.augment.run and data.augment.passages belong together; set both, or neither"
            )
        for name, needed, known in (
            ("template", ("inputs", "passages"), ("inputs", "passages")),
            ("passage", ("text",), ("title", "text")),
        ):
            template = getattr(self, name)
            fill(template, dict.fromkeys(known, ""))
            if absent := [place for place in needed if place not in places(template)]:
                raise InputError(
                    f"data.augment.{name} {template!r} must have the place {{{absent[0]}}}"
                )

    def identity(self) -> dict[str, Any]:
        """The settings that a saved position in the data depends on, as JSON."""
        return {"augment": dataclasses.asdict(self)} if self.run else {}
