"""The commands in Markdown: blocks in fences or indented, and the command lines in them."""

import dataclasses
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("t5x-lite", "pip", "python", "python3", "scripts/", "curl", ".ci/")
"""How a line that is a command begins."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Some lines that are shown as code.

    Attributes:
      where: file and line.
      text: the lines.
      language: of a fence; "" of an indented block.
      not_run: why no test runs it; None where nothing is said.
      extra: options that a test adds to its commands.
    """

    where: str
    text: str
    language: str
    not_run: str | None
    extra: str

    @property
    def has_command(self) -> bool:
        lines = [line.strip().removeprefix("$ ") for line in self.text.splitlines()]
        shown = self.language in ("", "bash")
        return shown and any(line.startswith(COMMANDS) for line in lines)


def blocks(path: Path) -> list[Block]:
    """The code of a file, in order."""
    result: list[Block] = []
    lines, number, note = path.read_text().splitlines(), 0, ""
    whole_page = next((why for line in lines if (why := _said(line, "no command is run"))), None)
    while number < len(lines):
        line = lines[number]
        start = number + 1
        fence = re.match(r"```(\w*)", line)
        if fence:
            end = next(i for i in range(start, len(lines)) if lines[i].startswith("```"))
            body, number = lines[start:end], end + 1
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip() or note):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body, number = [one[4:] for one in lines[number:end]], end
        else:
            if line.strip():
                note = line if line.startswith("<!--") else ""
            number += 1
            continue
        result.append(
            Block(
                where=f"{path.relative_to(ROOT)}:{start}",
                text="\n".join(body),
                language=fence.group(1) if fence else "",
                not_run=_said(note, "not run") or whole_page,
                extra=_said(note, "test") or "",
            )
        )
        note = ""
    return result


def command_lines(block: Block) -> list[list[str]]:
    """The arguments of each `t5x-lite` in a block, without what a shell does around them."""
    joined = re.sub(r"\s*\\\n\s*", " ", block.text)
    found = []
    for line in joined.splitlines():
        line = line.strip().removeprefix("$ ")
        for part in re.split(r"\|\s*(?=t5x-lite)|(?<=\|)\s*$", line):
            part = part.strip().rstrip("|").strip()
            if part.startswith("source <("):
                part = part.removeprefix("source <(").rstrip(")")
            if part.startswith("t5x-lite ") and "..." not in part:
                words = shlex.split(part, comments=True)
                end = next((i for i, w in enumerate(words) if w in ("|", ">", "&&", ";")), None)
                found.append(words[1:end])
    return found


def with_extra(block: Block) -> str:
    """The block as a test runs it: the options that it adds stand behind its longer commands.

    They take the place of the same options in a command.
    """
    if not block.extra:
        return block.text
    flags = re.findall(r"--\S+", block.extra)

    def changed(found: re.Match[str]) -> str:
        command = found.group(1)
        for flag in flags:
            command = re.sub(rf" {re.escape(flag)}(?: (?!--)\S+)*", "", command)
        return f"{command} {block.extra}"

    joined = re.sub(r"\s*\\\n\s*", " ", block.text)
    return re.sub(
        r"^( *t5x-lite (?:train|evaluate|vocab) .*)$", changed, joined, flags=re.MULTILINE
    )


def _said(note: str, name: str) -> str | None:
    found = re.fullmatch(rf"<!-- {name}: (.+) -->", note.strip())
    return None if found is None else found.group(1)
