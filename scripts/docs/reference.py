"""Pages made from the code: one for each command, and the fields of every config."""

import dataclasses
import html
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import docstring_parser

from t5x_lite.commands import COMMANDS, PROG
from t5x_lite.core.options import bounds_of, is_positional

SECTIONS = {
    "experiment": ("Experiment", ["t5x_lite.config", "t5x_lite.checkpoints.init",
                                  "t5x_lite.core.sharding", "t5x_lite.data.few_shot"]),
    "data": ("Data and layouts", ["t5x_lite.data", "t5x_lite.layouts"]),
    "models": ("Models", ["t5x_lite.models"]),
    "objectives": ("Objectives", ["t5x_lite.objectives"]),
    "heads": ("Heads", ["t5x_lite.models.heads", "t5x_lite.models.heads",
                        "t5x_lite.models.vector_heads"]),
    "adapters": ("Adapters", ["t5x_lite.adapters"]),
    "optimizers": ("Optimizers and schedules", ["t5x_lite.optim"]),
    "cleaning": ("Cleaning of C4", ["t5x_lite.c4.config"]),
    "decoding": ("Decoding", ["t5x_lite.decoding.sampling"]),
}  # fmt: skip
"""Page -> its title, and the packages whose configs it describes."""


def pages() -> dict[str, str]:
    """Path below reference/ -> Markdown."""
    result = {f"commands/{name.replace(' ', '_')}.md": command_page(name) for name in COMMANDS}
    result["commands/index.md"] = _index()
    result |= config_pages()
    return result


def command_page(name: str) -> str:
    """The page of a command: its docstring and its options."""
    command = COMMANDS[name]
    about, fields = _docstring(command)
    hints = typing.get_type_hints(command, include_extras=True)
    rows, usage = [], [f"{PROG} {name}"]
    for field in dataclasses.fields(command):
        if is_positional(hints[field.name]):
            usage.append(field.name.upper())
            rows.append((_code(field.name.upper()), "", fields.get(field.name, "")))
            continue
        nested = _dataclass_of(hints[field.name])
        if nested is not None:
            rows += _nested_options(field.name, nested)
            continue
        option = f"--{field.name.replace('_', '-')}"
        metavar = _metavar(hints[field.name])
        shown = "required" if _is_required(field) else _default(field)
        if _is_required(field):
            usage.append(f"{option} {metavar}".rstrip())
        rows.append((_code(f"{option} {metavar}".rstrip()), shown, fields.get(field.name, "")))
    more = " [--FIELD VALUE ...]" if command.takes_overrides else ""
    note = (
        "\n`--FIELD VALUE` changes a [field of the config](../config/experiment.md).\n"
        if command.takes_overrides and "config" in command.__dataclass_fields__
        else ""
    )
    shown = f"```text\n{' '.join(usage)} [OPTIONS]{more}\n```\n{note}"
    table = _table(("Option", "Default", "Meaning"), rows)
    example = f"Example:\n\n```bash\n{command.example}\n```\n\n"
    return f"# {name}\n\n{_escape_text(about)}\n\n{shown}\n{example}{table}"


def config_pages() -> dict[str, str]:
    """The pages of configs, by section."""
    classes = sorted(_configs(), key=lambda one: (one.__module__, _line(one)))
    result = {}
    for name, (title, packages) in SECTIONS.items():
        own = [one for one in classes if one.__module__.startswith(tuple(packages))]
        own = [one for one in own if _section_of(one) == name]
        parts = [f"# {title}\n"]
        for one in own:
            about, fields = _docstring(one)
            hints, bounds = typing.get_type_hints(one), bounds_of(one)
            rows = [
                (
                    _code(field.name),
                    _default(field),
                    ", ".join(filter(None, (_type(hints[field.name]), bounds.get(field.name)))),
                    fields.get(field.name, ""),
                )
                for field in dataclasses.fields(one)
            ]
            parts.append(
                f"## {one.__name__}\n\n`{one.__module__}`\n\n{_escape_text(about)}\n\n"
                + _table(("Field", "Default", "Type", "Meaning"), rows)
            )
        result[f"config/{name}.md"] = "\n".join(parts)
    return result


def _index() -> str:
    rows = [
        (
            f'<a href="{name.replace(" ", "_")}.html">{html.escape(name)}</a>',
            _docstring(command)[0].partition("\n")[0],
        )
        for name, command in COMMANDS.items()
    ]
    body = "".join(f"<tr><td>{a}</td><td>{_cell(b)}</td></tr>" for a, b in rows)
    return (
        f"# Commands\n\n`{PROG} COMMAND --help` prints the same texts.\n\n"
        f"<table><thead><tr><th>Command</th><th>What it does</th></tr></thead><tbody>{body}"
        "</tbody></table>\n"
    )


def _configs() -> set[type]:
    """Every config that an experiment may hold, and what C4 and decoding have."""
    for package in ("models", "objectives", "optim", "adapters", "layouts"):
        module = importlib.import_module(f"t5x_lite.{package}")
        for info in pkgutil.iter_modules(module.__path__):
            importlib.import_module(f"t5x_lite.{package}.{info.name}")
    from t5x_lite.adapters.base import Adapter
    from t5x_lite.c4.config import Cleaning
    from t5x_lite.config import Experiment
    from t5x_lite.decoding.sampling import Decoding

    found: set[type] = set()
    waiting: list[type] = [Experiment, Adapter, Cleaning, Decoding]
    while waiting:
        one = waiting.pop()
        if one in found or not dataclasses.is_dataclass(one):
            waiting += [other for other in one.__subclasses__() if other not in found]
            continue
        if not one.__module__.startswith("t5x_lite."):
            continue
        found.add(one)
        waiting += one.__subclasses__()
        for hint in typing.get_type_hints(one).values():
            waiting += list(_classes_in(hint))
    return {one for one in found if not one.__name__.startswith("_")}


def _classes_in(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint) and hint.__module__.startswith("t5x_lite."):
        yield hint
    for argument in typing.get_args(hint):
        yield from _classes_in(argument)


def _section_of(one: type) -> str:
    """The section with the longest package that holds a class."""
    return max(
        SECTIONS,
        key=lambda name: max(
            (len(p) for p in SECTIONS[name][1] if one.__module__.startswith(p)), default=0
        ),
    )


def _nested_options(name: str, nested: type) -> list[tuple[str, str, str]]:
    _, fields = _docstring(nested)
    hints = typing.get_type_hints(nested, include_extras=True)
    return [
        (
            _code(
                f"--{name}.{field.name.replace('_', '-')} {_metavar(hints[field.name])}".rstrip()
            ),
            _default(field),
            fields.get(field.name, ""),
        )
        for field in dataclasses.fields(nested)
    ]


def _docstring(one: Any) -> tuple[str, dict[str, str]]:
    """What a class is, and its attributes, those of its bases included."""
    fields: dict[str, str] = {}
    for base in reversed(one.__mro__):
        parsed = docstring_parser.parse(base.__dict__.get("__doc__") or "")
        fields |= {
            param.arg_name: " ".join((param.description or "").split()) for param in parsed.params
        }
    text = inspect.cleandoc(one.__doc__ or "")
    about = re.split(r"^(?:Attributes|Args):$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return about.strip(), fields


def _dataclass_of(hint: Any) -> type | None:
    inner = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return inner if inspect.isclass(inner) and dataclasses.is_dataclass(inner) else None


def _metavar(hint: Any) -> str:
    """What stands behind an option: that of its annotation, or its choices."""
    if typing.get_origin(hint) is typing.Annotated:
        for mark in typing.get_args(hint)[1:]:
            if getattr(mark, "metavar", None):
                return mark.metavar
        hint = typing.get_args(hint)[0]
    return _type(hint)


def _type(hint: Any) -> str:
    """A type as a reader of configs sees it."""
    if hint is type(None):
        return "None"
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(str(choice) for choice in typing.get_args(hint))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join(_type(argument) for argument in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Annotated:
        return _type(typing.get_args(hint)[0])
    if arguments := typing.get_args(hint):
        inner = ", ".join("..." if one is Ellipsis else _type(one) for one in arguments)
        return f"{getattr(typing.get_origin(hint), '__name__', hint)}[{inner}]"
    return "True | False" if hint is bool else getattr(hint, "__name__", str(hint))


def _is_required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: Any) -> str:
    if _is_required(field):
        return "required"
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    return "" if value is None else repr(value)


def _escape_text(markdown: str) -> str:
    """Escape HTML outside of code; Markdown escapes the code itself."""
    parts = re.split(r"(^(?: {4}.*|\s*)$|`[^`\n]+`)", markdown, flags=re.MULTILINE)
    for place in range(0, len(parts), 2):
        parts[place] = html.escape(parts[place], quote=False)
    return "".join(parts)


def _code(text: str) -> str:
    return f"`{text}`"


def _line(one: type) -> int:
    return inspect.getsourcelines(one)[1]


def _cell(text: str) -> str:
    """HTML of a table's cell; parts in backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def _table(headings: tuple[str, ...], rows: list[Any]) -> str:
    """An HTML table; a cell in backticks is code, and so are parts of the last one."""
    head = "".join(f"<th>{one}</th>" for one in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(str(one))}</td>" for one in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="fields">{table}</div>\n' if rows else ""
