"""Commands that make training data of text: pairs, synthesize."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import (
    Count,
    File,
    FileTuple,
    OptionalCount,
    OptionalFile,
    OptionalNumber,
    Text,
    TextTuple,
)
from t5x_lite.options import OptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Make pairs of queries and passages from unlabelled text, by a rule and filters.

    OUTPUT.report.json says what each filter dropped. The same files give the same pairs; a killed
    command goes on.

    Attributes:
      input: WET or WARC files, directories or lists (*.paths) of them; JSON lines, Parquet, Arrow;
        text files, whose documents blank lines divide; directories and patterns of these; hf://NAME
        or tfds://NAME. For parallel two text files may be translations line by line, or *.tsv has
        source TAB target, or score TAB source TAB target, or NLLB's columns.
      output: JSON lines {"query", "pos", "source", "lang"}, as training reads them.
      rule: which parts of a document are a query and a passage.
      languages: the two languages of aligned files or of *.tsv; other inputs take one, if they do
        not state it.
      min_score: lowest score of a line of *.tsv that is kept.
      min_query_words: of a query at least.
      max_query_words: of a query at most.
      min_passage_words: of a passage at least.
      max_queries: pairs of one passage at most.
      bad_words: a file with an entry on each line; a pair with one is dropped.
      languages_by: langdetect or cld3 drops passages in another language than they say.
      seed: random seed for the sentences that the rule ict draws.
      text: column that is taken as text, or columns in braces, of JSON and of tables.
    """

    input: FileTuple
    output: File
    rule: Literal[
        "title_body",
        "title_abstract",
        "question_answer",
        "instruction_output",
        "heading_section",
        "sentences",
        "ict",
        "code_docstring",
        "parallel",
    ]
    languages: TextTuple = ()
    min_score: OptionalNumber = None
    min_query_words: Count = 2
    max_query_words: Count = 64
    min_passage_words: Count = 10
    max_queries: Count = 20
    bad_words: OptionalFile = None
    languages_by: Literal["langdetect", "cld3"] | None = None
    seed: Count = 0
    text: Text = "{text}"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--seed": self.seed})
        if not self.input:
            raise OptionError("--input needs at least one file")
        at_least(
            1,
            {
                "--min-query-words": self.min_query_words,
                "--max-query-words": self.max_query_words,
                "--min-passage-words": self.min_passage_words,
                "--max-queries": self.max_queries,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.pair_making.make_pairs."""
        from t5x_lite.retrieval.pair_filters import Filters
        from t5x_lite.run.pair_making import make_pairs

        filters = Filters(
            min_query_words=self.min_query_words,
            max_query_words=self.max_query_words,
            min_passage_words=self.min_passage_words,
            max_queries=self.max_queries,
            bad_words=self.bad_words or "",
            languages_by=self.languages_by or "",
        )
        make_pairs(
            self.input,
            output=self.output,
            rule=self.rule,
            languages=self.languages,
            filters=filters,
            seed=self.seed,
            min_score=self.min_score,
            text=self.text,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesizeRequests:
    """Write what a generator of yours is asked about long articles.

    Attributes:
      articles: JSON lines {"id", "text"}, perhaps with "title" and "lang".
      output: JSON lines {"id", "lang", "text", "prompt"}.
      prompt: a file with the template, in which {text} stands for the excerpt.
      min_words: of an article at least.
      max_words: of its excerpt at most, a run of whole paragraphs.
      number: articles of each language at most, drawn by seed; all if not given.
      seed: of all draws.
    """

    articles: FileTuple
    output: File
    prompt: OptionalFile = None
    min_words: Count = 1000
    max_words: Count = 350
    number: OptionalCount = None
    seed: Count = 0
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.articles:
            raise OptionError("--articles needs at least one file")
        numbers = {"--min-words": self.min_words, "--max-words": self.max_words}
        at_least(1, {**numbers, "--number": self.number})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.synthesizing.requests."""
        from t5x_lite.retrieval.synthesis import Excerpts
        from t5x_lite.run.synthesizing import requests

        excerpts = Excerpts(
            min_words=self.min_words,
            max_words=self.max_words,
            number=self.number,
            seed=self.seed,
        )
        requests(self.articles, output=self.output, prompt=self.prompt, excerpts=excerpts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesizeCollect:
    """Make pairs of the questions that a generator wrote and the whole articles.

    Attributes:
      articles: the files that the requests were made of.
      answers: JSON lines {"id", "question"}.
      output: JSON lines {"query", "pos", "id", "lang"}, as training reads them.
      min_words: of a question at least.
      max_words: of a question at most.
      languages_by: langdetect or cld3 drops questions in another language than the article's.
    """

    articles: FileTuple
    answers: File
    output: File
    min_words: Count = 3
    max_words: Count = 64
    languages_by: Literal["langdetect", "cld3"] | None = None
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.articles:
            raise OptionError("--articles needs at least one file")
        at_least(1, {"--min-words": self.min_words, "--max-words": self.max_words})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.synthesizing.collect."""
        from t5x_lite.run.synthesizing import collect

        collect(
            self.articles,
            answers=self.answers,
            output=self.output,
            min_words=self.min_words,
            max_words=self.max_words,
            languages_by=self.languages_by or "",
        )
