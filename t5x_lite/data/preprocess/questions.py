r"""Questions about a text: SQuAD, and MultiRC and ReCoRD of SuperGLUE.

    squad({"question": "Why?", "context": "It rains.", "answers": {"text": ["rain"]}, "id": "7"})
    # {"inputs": "question: Why ? context: It rains . ", "targets": "rain", "id": "7", ...}

Source: t5 0.9.4, t5/data/preprocessors.py (squad, glue, record). White space is that of RE2's "\s",
which is ASCII and has no vertical tab.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

from t5x_lite.data.preprocess.classification import UNKNOWN, label_text
from t5x_lite.data.preprocess.templates import fill

_SPACES = re.compile(r"[\t\n\f\r ]+")
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
_SENTENCE_END = re.compile(r"""([.?!"'])\n@highlight\n""")


def pad_punctuation(text: str) -> str:
    """The text with a space on both sides of each ASCII punctuation mark, white space joined."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def squad(
    record: Mapping[str, Any], *, inputs: str = "question: {question} context: {context}"
) -> dict[str, Any]:
    """SQuAD: the first answer is the target, and all are kept for the metric.

    Args:
      record: "id", "question", "context", and "answers" with the list "text", empty where they are
        not known.
      inputs: the template; T5's closed-book form is "squad trivia question: {question}".
    """
    question, context = pad_punctuation(record["question"]), pad_punctuation(record["context"])
    answers = [pad_punctuation(answer) for answer in record["answers"]["text"]]
    return {
        "inputs": _SPACES.sub(" ", fill(inputs, {"question": question, "context": context})),
        "targets": answers[0] if answers else UNKNOWN,
        "id": record["id"],
        "context": context,
        "question": question,
        "answers": answers,
    }


def multirc(
    record: Mapping[str, Any],
    *,
    inputs: str = "multirc question: {question} answer: {answer} paragraph: {paragraph}",
) -> dict[str, Any]:
    """MultiRC: is this an answer to that question? HTML's <br> becomes a space, <b> goes.

    Args:
      record: "question", "answer", "paragraph", "label", and "idx" with the numbers of all three:
        the metric groups answers by their question.
      inputs: the template.
    """
    return {
        "inputs": without_html(fill(inputs, record)),
        "targets": label_text(record["label"], ("False", "True")),
        **{f"idx/{name}": record["idx"][name] for name in ("paragraph", "question", "answer")},
    }


def without_html(text: str) -> str:
    """A text of MultiRC: HTML's <br> becomes a space, <b> goes."""
    return re.sub("</?b>", "", text.replace("<br>", " "))


def record(
    record: Mapping[str, Any],
    *,
    inputs: str = "record query: {query} entities: {entities} passage: {passage}",
) -> list[dict[str, Any]]:
    """ReCoRD: which entity fills the @placeholder? One example for each answer.

    Without answers there is one example, its target "<unk>". The metric takes the best over the
    answers of a query, once.

    Args:
      record: "query", "passage", the lists "entities" and "answers", and "idx" with the numbers
        "passage" and "query".
      inputs: the template.
    """
    passage = without_highlights(record["passage"])
    fields = {**record, "passage": passage, "entities": ", ".join(record["entities"])}
    return [
        {
            "idx/passage": record["idx"]["passage"],
            "idx/query": record["idx"]["query"],
            "inputs": fill(inputs, fields),
            "targets": answer,
            "answers": list(record["answers"]),
        }
        for answer in record["answers"] or [UNKNOWN]
    ]


def without_highlights(passage: str) -> str:
    """A passage of ReCoRD: its "@highlight" lines become ends of sentences, as in T5."""
    return _SENTENCE_END.sub(r"\1 ", passage).replace("\n@highlight\n", ". ")
