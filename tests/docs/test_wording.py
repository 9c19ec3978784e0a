"""Wording of docstrings, comments and messages: hits of each pattern in each room may only fall.

A pattern is a rule of the sheet on English with its remedy. `COUNTS` holds the hits that are left;
`python tests/docs/test_wording.py` rewrites it after texts changed and refuses to raise a number.
"""

import ast
import collections
import functools
import inspect
import io
import pathlib
import re
import sys
import textwrap
import tokenize

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "t5x_lite"

PATTERNS = {
    # name: (regular expression, remedy)
    "opening": (r"^(?:what|which|whether|how|where|of)\b", "begin with the subject or the verb"),
    "clause": (
        r"\b(?:says?|tells?|knows?) (?:what|which|whether|how|where|when|that)\b",
        "name the thing; files and modules do not speak",
    ),
    "of which": (r"\bof which\b|\bwhose\b", "two sentences"),
    "those of": (r"\b(?:that|those) of\b|\bthose (?:that|which|with)\b", "repeat the noun"),
    "is no": (r"\b(?:is|are) (?:no|none)\b|\bnone where\b|\bnothing but\b", "say it positively"),
    "goes on": (r"\b(?:go|goes|going|went|gone) on\b", "resumes, continues"),
    "anew": (r"\banew\b|\bafresh\b", "again"),
    "beside": (r"\bbesides?\b", "next to, compared with; also"),
    "alone": (r"\balone\b", "only"),
    "in place of": (r"\bin place of\b", "instead of"),
    "refuse": (r"\brefus(?:e|es|ed|ing|al)\b", "raises, rejects"),
    "whole": (r"\b(?:is|are|was|were) whole\b", "complete"),
    "drawn": (r"\bby lot\b|\bdrawn\b|\bdraws?\b", "at random; sampled"),
    "stands": (r"\bstands?\b|\bstood\b|\bstanding\b", "a literal verb: is, holds"),
    "left out": (r"\bleft out\b|\bleaves? out\b|\bpassed over\b", "skipped, excluded"),
    "places": (r"\bplaces\b", "positions, ranks, indices"),
    "share of": (r"\bshares? of\b", "fraction of"),
    "falling": (r"\bfalling\b", "descending"),
    "fresh": (r"\bfresh(?:ly)?\b", "newly initialized"),
    "mends": (r"\bmend(?:s|ed|ing)?\b", "fixes"),
    "of own": (
        r"(?<!instead )\bof (?:yours|one's own|its own|their own|our own)\b",
        "your, custom",
    ),
    "at most": (r"\bat most(?=[.,;:]|$)", "maximum first"),
    "spelling": (r"\w*(?:normalis|initialis|optimis|regularis|judgement)\w*", "American spelling"),
}

TABLE = """
"""
"""Pattern: hits in each room of the package."""

COUNTS = {
    pattern: {room: int(count) for room, count in (row.split() for row in rooms.split(","))}
    for pattern, rooms in (
        line.split(":") for line in TABLE.replace("\n    ", " ").strip().splitlines() if line
    )
}

ANY = re.compile("|".join(f"({pattern})" for pattern, _ in PATTERNS.values()), re.IGNORECASE)
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note):")
API = re.compile(
    r"`[^`]*`|\"[\w./ -]*\"|'[\w./-]*'|--[\w.-]+|\b\w+\.\w+\b|\b\w+_\w+\b|\bNone\b|\b[A-Z]{4,}\b"
)


def is_string(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def paragraphs(docstring: str) -> list[str]:
    """Paragraphs and fields of a docstring, without headings, examples and names of fields."""
    found, indent = [""], 0
    for line in inspect.cleandoc(docstring).splitlines():
        text = line.strip()
        if not indent and line.startswith("    "):
            continue  # an example
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


def hits(text: str) -> collections.Counter[str]:
    names = list(PATTERNS)
    return collections.Counter(
        names[(match.lastindex or 1) - 1] for match in ANY.finditer(API.sub("X", text))
    )


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
        if count > COUNTS.get(pattern, {}).get(room, 0)
    ]
    if raised:
        sys.exit("\n".join(raised))
    rows = [
        textwrap.fill(
            f"{pattern}: " + ", ".join(f"{room} {count}" for room, count in rooms.items()),
            width=98,
            subsequent_indent="    ",
        )
        for pattern, rooms in today.items()
    ]
    path = pathlib.Path(__file__)
    text = path.read_text()
    start, end = text.index('TABLE = """') + 12, text.index('"""\n"""Pattern: hits')
    path.write_text(text[:start] + "".join(f"{row}\n" for row in rows) + text[end:])


if __name__ == "__main__":
    main()
