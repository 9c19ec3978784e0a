"""The grammar of `adapters.use`: one line of text says which modules are in use, and how.

    parse_trees("rte, mrpc")                         ("rte", "mrpc")         at different sites
    parse_trees("Stack(en, Fuse(sst2, nli))")        (Stack(("en", Fuse(("sst2", "nli")))),)
    write_trees(trees)                               the line again

Blocks and their options are those of `t5x_lite.adapters.composition`; None is the bare model.
"""

import ast
import dataclasses
import typing
from collections.abc import Sequence

from t5x_lite.adapters.composition import BLOCKS, Block, check_nesting, names_of
from t5x_lite.adapters.grammar import Source
from t5x_lite.errors import InputError
from t5x_lite.options import did_you_mean

_EXPECTED = "expected the names of modules, or blocks as Stack(a, b), with commas between"


def parse_trees(text: str) -> tuple[str | Block, ...]:
    """The trees of an expression; none of "".

    Raises:
      InputError: with the column.
    """
    if not text.strip():
        return ()
    source = Source(text)
    statements = source.parsed.body
    statement = statements[0] if len(statements) == 1 else None
    if not isinstance(statement, ast.Expr):
        source.refuse(statement, _EXPECTED)
    value = statement.value
    trees: list[str | Block] = []
    for node in value.elts if isinstance(value, ast.Tuple) else [value]:
        tree = _tree(source, node)
        if tree is None:
            source.refuse(node, "None, the bare model, stands in a block alone")
        if tree in trees:
            source.refuse(node, f"{str(tree)!r} is named twice")
        trees.append(tree)
    try:
        check_nesting(trees)
    except InputError as error:
        source.refuse(value, str(error))
    return tuple(trees)


def parse_use(text: str) -> tuple[str, ...]:
    """The names of the modules that an expression puts into use, each once.

    Raises:
      InputError: as for `parse_trees`.
    """
    return names_of(parse_trees(text))


def write_trees(trees: Sequence[str | Block]) -> str:
    """The line that `parse_trees` makes these trees of."""
    return ", ".join(map(str, trees))


def _tree(source: Source, node: ast.expr) -> str | Block | None:
    if isinstance(node, ast.Name):
        if node.id in BLOCKS:
            source.refuse(node, f"{node.id} needs children in brackets: {node.id}(a, b)")
        return node.id
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        source.refuse_others(node)
        source.refuse(node, _EXPECTED)
    name = node.func.id
    if name not in BLOCKS:
        source.refuse_others(node)
        near = did_you_mean(name, BLOCKS)
        source.refuse(node, f"no block is called {name}{near}; the blocks are {', '.join(BLOCKS)}")
    children = tuple(_tree(source, child) for child in node.args)
    block = BLOCKS[name]
    hints = {
        field.name: typing.get_type_hints(block)[field.name]
        for field in dataclasses.fields(block)
        if field.name != "children"
    }
    options = {}
    for keyword in node.keywords:
        if keyword.arg not in hints:
            has = f"it has {', '.join(hints)}" if hints else "it has none"
            near = did_you_mean(str(keyword.arg), hints)
            source.refuse(keyword, f"{name} has no option {keyword.arg}{near}; {has}")
        options[keyword.arg] = source.value(keyword, hints[keyword.arg])
    try:
        return block(children, **options)
    except InputError as error:
        source.refuse(node, str(error))
