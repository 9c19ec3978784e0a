"""Expressions of deltas for `t5x-lite compose`, parsed by `ast` and never run as Python.

    ties(a, b, density=0.2) - 0.5 * c

A name is a delta (a change of a base model), and may be multiplied or divided by numbers.
Functions:

    linear(a, b, weights=[1, 1])    average(a, b)                    svd(a, b, rank=8, weights=...)
    ties(a, b, density=0.2, scale=1, weights=...)                    fisher(a, b, weights=...)
    dare(a, b, p=0.5, seed=0, weights=...)
    sparsify(a, density=0.01)       sparsify(a, k=1000)              factor(a, rank=8)
    materialize(a)                  without_heads(a)
    average_factors(a, b, ...)      zhang(a, b, ...)                 peft_linear(a, b, ...)

Errors give the column, counted from 1.
"""

import ast
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_merging import (
    AverageFactors,
    Dare,
    Fisher,
    Linear,
    PeftLinear,
    Svd,
    Ties,
    Zhang,
    merge,
)
from t5x_lite.core.errors import InputError, shortened, shown
from t5x_lite.core.options import did_you_mean

Value = Delta | float | int | tuple[float, ...]

_LARGEST = 1e38
_LONGEST = 10_000
"""Maximum characters of an expression."""


@dataclasses.dataclass(frozen=True)
class Function:
    """Function of an expression in `t5x-lite compose`, such as ties(a, b).

    Attributes:
      options: option name -> True if the option is required.
      several: True if the arguments may be several deltas and their weights.
      call: Python function (deltas, weights, options, names of the deltas) -> resulting delta.
    """

    options: Mapping[str, bool]
    several: bool
    call: Callable[[Sequence[Delta], Sequence[float], dict[str, Any], Sequence[str]], Delta]


@dataclasses.dataclass(frozen=True)
class Names:
    """Deltas by the names that an expression of `t5x-lite compose` may use.

    Attributes:
      deltas: name -> delta.
      diagonals: name -> Fisher diagonal by path, for `fisher`.
      materialise: function from a delta's name to the delta as dense differences; needs the base
        model.
    """

    deltas: Mapping[str, Delta]
    diagonals: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    materialise: Callable[[str], Delta] | None = None


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of the deltas in an expression of `t5x-lite compose`, in order.

    Raises:
      InputError: if the text is not a valid expression.
    """
    tree = _parsed(text.strip())
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in calls]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(node.id for node in nodes))


def check(text: str, names: Iterable[str]) -> None:
    """Raise InputError, with the column, if an expression has an unknown delta or function."""
    text, known = text.strip(), list(names)
    tree = _parsed(text)
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        if id(node) in calls:
            if node.id not in FUNCTIONS:
                remedy = (
                    did_you_mean(node.id, FUNCTIONS) or f"; functions are {', '.join(FUNCTIONS)}"
                )
                raise _error(text, node, f"unknown function {shortened(node.id)}{remedy}")
        elif node.id not in known:
            short = shortened(node.id)
            remedy = did_you_mean(node.id, known) or f"; name a delta with --delta {short}=DIR"
            raise _error(text, node, f"unknown delta {short}{remedy}")


def evaluate(text: str, names: Names) -> Delta:
    """Return the delta that an expression of `t5x-lite compose` computes.

    Raises:
      InputError: with the column, for a syntax error, an unknown name or function, an invalid
        option, or an unsupported operation.
    """
    text = text.strip()
    check(text, names.deltas)
    value = _Evaluator(text, names).value(_parsed(text))
    if not isinstance(value, Delta):
        raise InputError(
            f"expression {shown(text)} must compute a delta, but its value is a number"
        )
    return value


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise InputError(
            f"the expression has {len(text)} characters, but the maximum is {_LONGEST}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning: "1if x", a call of a number
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        column = error.offset if error.lineno == 1 and error.offset else len(text) + 1
        raise _at(text, min(column, len(text) + 1), str(error.msg)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"the expression cannot be parsed ({error})") from error


def _at(text: str, column: int, why: str) -> InputError:
    return InputError(f"expression {shown(text)}, column {column}: {why}")


def _error(text: str, node: ast.AST, why: str) -> InputError:
    # ast counts bytes.
    before = text.encode()[: getattr(node, "col_offset", 0)].decode(errors="replace")
    return _at(text, len(before) + 1, why)


class _Evaluator:
    """Evaluator of one parsed expression of deltas."""

    def __init__(self, text: str, names: Names):
        self._text = text
        self._names = names

    def error(self, node: ast.AST, why: str) -> InputError:
        return _error(self._text, node, why)

    def value(self, node: ast.expr) -> Value:
        try:
            return self._value(node)
        except InputError as error:
            if re.match(r"expression .*, column \d+: ", str(error)):
                raise
            raise self.error(node, str(error)) from error
        except RecursionError as error:
            raise InputError("the expression is nested too deeply") from error

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool()):
                raise self.error(node, f"{node.value} is neither a number nor the name of a delta")
            case ast.Constant(value=int() | float() as number):
                return self._checked(node, number)
            case ast.Name(id=name):
                return self._names.deltas[name]
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                value = self.value(operand)
                if isinstance(value, tuple):
                    raise self.error(node, "a list cannot have a sign")
                return -value if isinstance(node.op, ast.USub) else value
            case ast.BinOp(left=left, op=operator, right=right):
                return self._binary(node, self.value(left), operator, self.value(right))
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                return tuple(self._number(entry) for entry in entries)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                return self._call(node, name, args, keywords)
        raise self.error(node, "expected only names, numbers, + - * / and functions")

    def _checked(self, node: ast.expr, value: Value) -> Value:
        if isinstance(value, int | float) and not abs(value) < _LARGEST:
            raise self.error(node, f"numbers must be below {_LARGEST:g}")
        return value

    def _number(self, node: ast.expr) -> float:
        value = self.value(node)
        if isinstance(value, int | float):
            return float(value)
        raise self.error(node, "expected a number")

    def _binary(self, node: ast.BinOp, left: Value, operator: ast.operator, right: Value) -> Value:
        numbers = [isinstance(side, int | float) for side in (left, right)]
        deltas = [isinstance(side, Delta) for side in (left, right)]
        one, two = _any(left), _any(right)
        match operator:
            case ast.Add() | ast.Sub() if all(numbers) or all(deltas):
                return self._checked(
                    node, one + two if isinstance(operator, ast.Add) else one - two
                )
            case ast.Mult() if all(numbers) or (any(numbers) and any(deltas)):
                return self._checked(node, one * two)
            case ast.Div() if numbers[1] and (numbers[0] or deltas[0]):
                if not two:
                    raise self.error(node.right, "division by 0")
                return self._checked(node, one / two if numbers[0] else one * (1.0 / two))
        raise self.error(
            node,
            "unsupported operation; deltas can be added and subtracted, and multiplied or divided "
            "by numbers",
        )

    def _call(
        self, node: ast.Call, name: str, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> Delta:
        function = FUNCTIONS[name]
        if not args or (len(args) > 1 and not function.several):
            wanted = "at least one delta" if function.several else "one delta"
            raise self.error(node, f"function {name} takes {wanted}, got {len(args)}")
        known = {**function.options, **({"weights": False} if function.several else {})}
        options: dict[str, Any] = {}
        for keyword in keywords:
            option = keyword.arg or "**"
            if option not in known:
                remedy = (
                    did_you_mean(option, known)
                    or f"; its options are {', '.join(known) or '(none)'}"
                )
                raise self.error(keyword, f"function {name} has no option {option}{remedy}")
            if option in options:
                raise self.error(keyword, f"option {option} is given twice")
            options[option] = self._option(keyword)
        if missing := [
            option for option, needed in known.items() if needed and option not in options
        ]:
            raise self.error(node, f"function {name} needs the option {missing[0]}=")
        deltas = [self._delta(arg, name) for arg in args]
        sources = [arg.id if isinstance(arg, ast.Name) else "" for arg in args]
        weights = options.pop("weights", ())
        if name == "fisher":
            options["diagonals"] = [self._diagonal(arg) for arg in args]
        if name in ("materialise", "materialize"):
            if not sources[0] or self._names.materialise is None:
                raise self.error(
                    args[0], f"function {name} takes the name of a delta, and needs its base model"
                )
            return self._names.materialise(sources[0])
        return function.call(deltas, weights, options, sources)

    def _option(self, keyword: ast.keyword) -> Any:
        value = self.value(keyword.value)
        if keyword.arg == "weights":
            if not isinstance(value, tuple):
                raise self.error(
                    keyword.value, "weights must be a list of numbers, such as [1, 0.5]"
                )
            return value
        if isinstance(value, Delta | tuple):
            raise self.error(keyword.value, f"option {keyword.arg} must be a number")
        if keyword.arg not in ("k", "rank", "seed"):
            return float(value)
        if not isinstance(value, int):
            raise self.error(keyword.value, f"option {keyword.arg} must be an integer, got {value}")
        return value

    def _delta(self, node: ast.expr, name: str) -> Delta:
        value = self.value(node)
        if not isinstance(value, Delta):
            raise self.error(
                node, f"function {name} takes deltas as arguments; give options as NAME=VALUE"
            )
        return value

    def _diagonal(self, node: ast.expr) -> Mapping[str, Any]:
        if isinstance(node, ast.Name) and node.id in self._names.diagonals:
            return self._names.diagonals[node.id]
        shown = node.id if isinstance(node, ast.Name) else "NAME"
        raise self.error(
            node,
            f"fisher needs the Fisher diagonal of each delta; pass --fisher {shown}=DIR",
        )


def _any(value: Any) -> Any:
    return value


def _merging(how: Callable[..., Any], **options: bool) -> Function:
    def call(
        deltas: Sequence[Delta],
        weights: Sequence[float | int],
        options: dict[str, Any],
        names: Sequence[str],
    ) -> Delta:
        del names
        return merge(deltas, how(**options), weights=weights)

    return Function(options, True, call)


def _average(
    deltas: Sequence[Delta],
    weights: Sequence[float | int],
    options: dict[str, Any],
    names: Sequence[str],
) -> Delta:
    del options, names
    if weights:
        raise InputError("average does not accept weights; use linear for a weighted sum")
    return merge(deltas, weights=[1 / len(deltas)] * len(deltas))


def _own(method: Callable[..., Delta], **options: bool) -> Function:
    def call(
        deltas: Sequence[Delta],
        weights: Sequence[float | int],
        options: dict[str, Any],
        names: Sequence[str],
    ) -> Delta:
        del weights, names
        return method(deltas[0], **options)

    return Function(options, False, call)


FUNCTIONS: Mapping[str, Function] = {
    "linear": _merging(Linear),
    "average": Function({}, True, _average),
    "svd": _merging(Svd, rank=True),
    "ties": _merging(Ties, density=False, scale=False),
    "dare": _merging(Dare, p=True, seed=False),
    "fisher": _merging(Fisher),
    "sparsify": _own(Delta.sparsify, k=False, density=False),
    "factor": _own(Delta.factor, rank=True),
    "materialise": _own(lambda delta: delta),
    "materialize": _own(lambda delta: delta),
    "without_heads": _own(Delta.without_heads),
    "average_factors": _merging(AverageFactors),
    "zhang": _merging(Zhang),
    "peft_linear": _merging(PeftLinear),
}
