"""Wording of docstrings, comments and messages: hits of each pattern in each room may only fall.

A pattern is a rule of the sheet on English with its remedy. `COUNTS` holds the hits that are left;
`python tests/docs/test_wording.py` rewrites it after texts changed and refuses to raise a number.
"""

import ast
import collections
import functools
import io
import pathlib
import re
import sys
import tokenize

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "t5x_lite"

PATTERNS = {
    # name: (regular expression, remedy)
    "opening": (r"^(what|which|whether|how|where|of)\b", "begin with the subject or the verb"),
    "clause": (
        r"\b(says?|tells?|knows?) (what|which|whether|how|where|when|that)\b",
        "name the thing; files and modules do not speak",
    ),
    "of which": (r"\bof which\b|\bwhose\b", "two sentences"),
    "those of": (r"\b(that|those) of\b|\bthose (that|which|with)\b", "repeat the noun"),
    "is no": (r"\b(is|are) (no|none)\b|\bnone where\b|\bnothing but\b", "say it positively"),
    "goes on": (r"\b(go|goes|going|went|gone) on\b", "resumes, continues"),
    "anew": (r"\banew\b|\bafresh\b", "again"),
    "beside": (r"\bbesides?\b", "next to, compared with; also"),
    "alone": (r"\balone\b", "only"),
    "in place of": (r"\bin place of\b", "instead of"),
    "refuse": (r"\brefus(e|es|ed|ing|al)\b", "raises, rejects"),
    "whole": (r"\b(is|are|was|were) whole\b", "complete"),
    "drawn": (r"\bby lot\b|\bdrawn\b|\bdraws?\b", "at random; sampled"),
    "stands": (r"\bstands?\b|\bstood\b|\bstanding\b", "a literal verb: is, holds"),
    "left out": (r"\bleft out\b|\bleaves? out\b|\bpassed over\b", "skipped, excluded"),
    "places": (r"\bplaces\b", "positions, ranks, indices"),
    "share of": (r"\bshares? of\b", "fraction of"),
    "falling": (r"\bfalling\b", "descending"),
    "fresh": (r"\bfresh(ly)?\b", "newly initialized"),
    "mends": (r"\bmend(s|ed|ing)?\b", "fixes"),
    "of own": (r"\bof (yours|one's own|its own|their own|our own)\b", "your, custom"),
    "at most": (r"\bat most(?=[.,;:]|$)", "maximum first"),
    "spelling": (r"\w*(normalis|initialis|optimis|regularis|judgement)\w*", "American spelling"),
}

COUNTS: dict[str, dict[str, int]] = {
    "opening": {
        "__init__": 20,
        "adapters": 188,
        "c4": 70,
        "checkpoints": 31,
        "commands": 97,
        "config": 44,
        "core": 115,
        "data": 482,
        "decoding": 16,
        "evaluate": 69,
        "inference": 144,
        "interop": 129,
        "layouts": 31,
        "metrics": 20,
        "models": 106,
        "nn": 213,
        "objectives": 125,
        "optim": 13,
        "plan": 54,
        "report": 19,
        "retrieval": 125,
        "serve": 26,
        "train": 89,
    },
    "clause": {
        "__init__": 1,
        "adapters": 13,
        "c4": 3,
        "checkpoints": 6,
        "commands": 8,
        "config": 8,
        "core": 15,
        "data": 48,
        "evaluate": 4,
        "inference": 10,
        "interop": 38,
        "layouts": 7,
        "metrics": 1,
        "models": 2,
        "nn": 3,
        "objectives": 10,
        "optim": 5,
        "report": 1,
        "serve": 4,
        "train": 25,
    },
    "of which": {
        "__init__": 1,
        "adapters": 50,
        "c4": 9,
        "checkpoints": 5,
        "commands": 25,
        "config": 9,
        "core": 20,
        "data": 99,
        "decoding": 4,
        "evaluate": 14,
        "inference": 33,
        "interop": 41,
        "layouts": 8,
        "metrics": 8,
        "models": 10,
        "nn": 22,
        "objectives": 40,
        "optim": 10,
        "plan": 9,
        "report": 5,
        "retrieval": 8,
        "serve": 5,
        "train": 21,
    },
    "those of": {
        "__init__": 5,
        "adapters": 63,
        "c4": 9,
        "checkpoints": 9,
        "commands": 20,
        "config": 18,
        "core": 41,
        "data": 159,
        "decoding": 9,
        "evaluate": 11,
        "inference": 30,
        "interop": 46,
        "layouts": 17,
        "metrics": 8,
        "models": 27,
        "nn": 50,
        "objectives": 77,
        "optim": 9,
        "plan": 8,
        "report": 8,
        "retrieval": 30,
        "serve": 14,
        "train": 35,
    },
    "is no": {
        "__init__": 4,
        "adapters": 41,
        "c4": 29,
        "checkpoints": 13,
        "commands": 18,
        "config": 6,
        "core": 20,
        "data": 150,
        "decoding": 3,
        "evaluate": 20,
        "inference": 41,
        "interop": 84,
        "layouts": 14,
        "metrics": 37,
        "models": 36,
        "nn": 24,
        "objectives": 38,
        "optim": 11,
        "plan": 21,
        "report": 4,
        "retrieval": 34,
        "serve": 4,
        "train": 13,
    },
    "goes on": {
        "c4": 10,
        "checkpoints": 3,
        "commands": 17,
        "config": 2,
        "core": 7,
        "data": 18,
        "decoding": 4,
        "inference": 5,
        "interop": 1,
        "layouts": 5,
        "metrics": 2,
        "models": 1,
        "nn": 1,
        "objectives": 3,
        "optim": 1,
        "retrieval": 9,
        "train": 18,
    },
    "anew": {
        "adapters": 1,
        "c4": 1,
        "checkpoints": 9,
        "commands": 2,
        "data": 8,
        "inference": 1,
        "metrics": 1,
        "models": 1,
        "nn": 2,
        "objectives": 1,
        "optim": 1,
        "train": 7,
    },
    "beside": {
        "__init__": 1,
        "adapters": 16,
        "c4": 3,
        "checkpoints": 4,
        "commands": 11,
        "config": 4,
        "core": 11,
        "data": 44,
        "evaluate": 3,
        "inference": 4,
        "interop": 43,
        "layouts": 8,
        "metrics": 1,
        "models": 7,
        "nn": 10,
        "objectives": 12,
        "optim": 1,
        "plan": 6,
        "retrieval": 1,
        "serve": 1,
        "train": 3,
    },
    "alone": {
        "__init__": 4,
        "adapters": 39,
        "c4": 9,
        "checkpoints": 8,
        "commands": 18,
        "config": 1,
        "core": 11,
        "data": 49,
        "evaluate": 5,
        "inference": 5,
        "interop": 34,
        "layouts": 13,
        "models": 11,
        "nn": 13,
        "objectives": 26,
        "optim": 2,
        "plan": 3,
        "report": 4,
        "retrieval": 8,
        "serve": 1,
        "train": 15,
    },
    "in place of": {
        "__init__": 1,
        "adapters": 9,
        "c4": 2,
        "commands": 9,
        "config": 2,
        "core": 4,
        "data": 18,
        "evaluate": 1,
        "layouts": 3,
        "metrics": 1,
        "models": 2,
        "nn": 5,
        "objectives": 13,
        "optim": 1,
        "retrieval": 2,
        "train": 6,
    },
    "refuse": {
        "adapters": 25,
        "c4": 2,
        "checkpoints": 5,
        "commands": 16,
        "config": 8,
        "core": 10,
        "data": 30,
        "decoding": 1,
        "evaluate": 2,
        "inference": 18,
        "interop": 28,
        "layouts": 3,
        "metrics": 3,
        "models": 10,
        "nn": 7,
        "objectives": 17,
        "optim": 1,
        "retrieval": 1,
        "serve": 14,
        "train": 5,
    },
    "whole": {
        "checkpoints": 10,
        "commands": 7,
        "core": 2,
        "data": 6,
        "inference": 2,
        "interop": 1,
        "retrieval": 3,
        "serve": 1,
        "train": 1,
    },
    "drawn": {
        "adapters": 16,
        "c4": 2,
        "commands": 8,
        "core": 1,
        "data": 34,
        "decoding": 2,
        "evaluate": 2,
        "inference": 1,
        "layouts": 23,
        "metrics": 8,
        "models": 6,
        "nn": 27,
        "objectives": 12,
        "report": 3,
        "retrieval": 15,
        "train": 10,
    },
    "stands": {
        "__init__": 2,
        "adapters": 55,
        "c4": 12,
        "checkpoints": 3,
        "commands": 11,
        "config": 2,
        "core": 9,
        "data": 88,
        "evaluate": 3,
        "inference": 5,
        "interop": 31,
        "layouts": 4,
        "metrics": 5,
        "models": 4,
        "nn": 16,
        "objectives": 3,
        "plan": 1,
        "report": 1,
        "retrieval": 12,
        "train": 5,
    },
    "left out": {
        "__init__": 1,
        "adapters": 15,
        "c4": 2,
        "checkpoints": 5,
        "commands": 9,
        "config": 3,
        "core": 4,
        "data": 29,
        "evaluate": 3,
        "inference": 2,
        "interop": 19,
        "layouts": 1,
        "metrics": 3,
        "models": 1,
        "nn": 3,
        "objectives": 7,
        "plan": 1,
        "report": 2,
        "retrieval": 7,
        "serve": 3,
        "train": 3,
    },
    "places": {
        "adapters": 23,
        "c4": 2,
        "checkpoints": 1,
        "commands": 2,
        "data": 25,
        "decoding": 2,
        "inference": 6,
        "interop": 11,
        "layouts": 3,
        "metrics": 1,
        "models": 9,
        "nn": 4,
        "objectives": 5,
        "report": 1,
        "retrieval": 8,
        "train": 7,
    },
    "share of": {
        "adapters": 14,
        "c4": 1,
        "commands": 7,
        "data": 16,
        "interop": 1,
        "metrics": 3,
        "objectives": 5,
        "report": 1,
        "retrieval": 2,
        "train": 3,
    },
    "falling": {"data": 1, "inference": 1, "optim": 1, "retrieval": 7},
    "fresh": {
        "adapters": 1,
        "checkpoints": 2,
        "core": 1,
        "evaluate": 1,
        "models": 7,
        "retrieval": 1,
    },
    "mends": {"core": 2, "data": 6},
    "of own": {
        "__init__": 2,
        "adapters": 13,
        "c4": 2,
        "commands": 24,
        "config": 3,
        "core": 7,
        "data": 45,
        "decoding": 2,
        "evaluate": 1,
        "inference": 3,
        "interop": 9,
        "layouts": 5,
        "metrics": 3,
        "models": 8,
        "nn": 8,
        "objectives": 12,
        "optim": 2,
        "plan": 1,
        "retrieval": 4,
        "serve": 2,
        "train": 10,
    },
    "at most": {
        "__init__": 2,
        "adapters": 10,
        "commands": 31,
        "config": 5,
        "core": 4,
        "data": 31,
        "decoding": 4,
        "inference": 17,
        "interop": 1,
        "layouts": 9,
        "models": 5,
        "nn": 3,
        "objectives": 8,
        "retrieval": 18,
        "serve": 10,
        "train": 3,
    },
    "spelling": {
        "adapters": 1,
        "checkpoints": 2,
        "commands": 3,
        "core": 2,
        "data": 27,
        "decoding": 1,
        "evaluate": 4,
        "interop": 4,
        "metrics": 7,
        "models": 3,
        "nn": 9,
        "objectives": 3,
        "retrieval": 2,
        "train": 2,
    },
}
"""Pattern -> room of the package -> hits."""

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note):")
API = re.compile(r"`[^`]*`|\"[\w./ -]*\"|'[\w./-]*'|--[\w.-]+|\b\w+\.\w+\b|\b\w+_\w+\b")


def is_string(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def paragraphs(docstring: str) -> list[str]:
    """Paragraphs and fields of a docstring, without headings, examples and names of fields."""
    found, indent = [""], 0
    for line in docstring.expandtabs().splitlines():
        text = line.strip()
        begins_field = re.match(r"\*{0,2}[\w., *]+: ", text) if indent else None
        if not text or SECTION.fullmatch(text):
            found.append("")
            indent = 1 if text else 0
        elif text.startswith(">>>"):
            continue
        elif begins_field and not found[-1].endswith(","):
            found.append(text[begins_field.end() :])
        else:
            found[-1] = f"{found[-1]} {text}".strip()
    return [one for one in found if one]


def texts(source: str) -> list[tuple[int, str]]:
    """Line and text of each paragraph that a person reads in a module."""
    found = []
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, line = token.string.lstrip("# "), token.start[0]
            if (
                comments
                and comments[-1][0] == line - 1
                and not token.line[: token.start[1]].strip()
            ):
                comments[-1] = (line, f"{comments[-1][1]} {text}")
            else:
                comments.append((line, text))
    found += comments
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and is_string(node.value):
            found += [(node.lineno, one) for one in paragraphs(node.value.value)]
        elif isinstance(node, ast.Raise) or (
            isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_logger.")
        ):
            inside = {
                id(part)
                for string in ast.walk(node)
                if isinstance(string, ast.JoinedStr)
                for part in string.values
            }
            for string in ast.walk(node):
                if id(string) in inside:
                    continue
                if isinstance(string, ast.JoinedStr):
                    parts = [v.value if is_string(v) else "`x`" for v in string.values]
                    found.append((string.lineno, "".join(parts)))
                elif is_string(string):
                    found.append((string.lineno, string.value))
    return found


def hits(text: str) -> dict[str, int]:
    prose = API.sub("X", text)
    counted = {
        name: len(re.findall(rf"(?i){pattern}", prose)) for name, (pattern, _) in PATTERNS.items()
    }
    return {name: count for name, count in counted.items() if count}


def room_of(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "__init__"


def lines_of(room: str, pattern: str) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)}:{line}: {text[:90]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if room_of(path) == room
        for line, text in texts(path.read_text())
        if pattern in hits(text)
    ]


@functools.cache
def counts() -> dict[str, dict[str, int]]:
    counted: dict[str, collections.Counter[str]] = {
        name: collections.Counter() for name in PATTERNS
    }
    for path in sorted(PACKAGE.rglob("*.py")):
        for _, text in texts(path.read_text()):
            for name, count in hits(text).items():
                counted[name][room_of(path)] += count
    return {name: dict(sorted(rooms.items())) for name, rooms in counted.items() if rooms}


def test_wording_only_gets_better():
    today = counts()
    worse = [
        f"{pattern!r} in {room}: {count}, and COUNTS has {known}; {PATTERNS[pattern][1]}: "
        + " | ".join(lines_of(room, pattern)[:20])
        for pattern, rooms in today.items()
        for room, count in rooms.items()
        if count > (known := COUNTS.get(pattern, {}).get(room, 0))
    ]
    assert worse == []


def test_finished_rows_are_gone():
    today = counts()
    finished = [
        (pattern, room)
        for pattern, rooms in COUNTS.items()
        for room in rooms
        if not today.get(pattern, {}).get(room)
    ]
    assert finished == [], "run python tests/docs/test_wording.py"


def test_texts_of_a_module():
    source = '''
"""What a thing does; `whose` is a name.

Args:
  size: of a batch at most.
  name: kept, in place of another.
"""
# goes on
# anew
x = 1  # drawn
raise ValueError(f"{x} is refused")
'''
    found = [name for _, text in texts(source) for name in hits(text)]
    expected = [
        "anew",
        "at most",
        "drawn",
        "goes on",
        "in place of",
        "opening",
        "opening",
        "refuse",
    ]
    assert sorted(found) == expected


def main() -> None:
    """Rewrite COUNTS of this file."""
    today = counts()
    raised = [
        f"{pattern} in {room}: {COUNTS[pattern].get(room, 0)} -> {count}"
        for pattern, rooms in today.items()
        for room, count in rooms.items()
        if COUNTS and count > COUNTS.get(pattern, {}).get(room, 0)
    ]
    if raised:
        sys.exit("\n".join(raised))
    rows = "".join(
        f"    {pattern!r}: " + "{" + ", ".join(f'"{r}": {n}' for r, n in rooms.items()) + "},\n"
        for pattern, rooms in today.items()
    ).replace("'", '"')
    path = pathlib.Path(__file__)
    table = re.compile(r"^COUNTS: .*?\}\n(?=\"\"\"Pattern)", re.DOTALL | re.MULTILINE)
    path.write_text(
        table.sub(f"COUNTS: dict[str, dict[str, int]] = {{\n{rows}}}\n", path.read_text(), count=1)
    )


if __name__ == "__main__":
    main()
