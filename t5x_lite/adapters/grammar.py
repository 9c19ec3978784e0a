"""Grammars of `adapters.add`, `adapters.use` and the expressions of `t5x-lite compose`.

Expressions of deltas for `t5x-lite compose`, parsed by `ast` and never run as Python.

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

Syntax of the config strings `adapters.add` and `adapters.use`.

A string of `adapters.add` consists of an adapter's name, its method and its options.

    parse_module("rte = lora(r=8)")          Lora(name="rte", rank=8)
    write_module(Lora(name="rte", rank=16))  "rte = lora(rank=16)"

A line is parsed by Python's `ast` and never run. Names are identifiers; values are numbers,
strings, True, False, None, and tuples of them. `METHODS` lists all built-in methods: a new method
is an entry there. Its options are the fields of the config that its constructor returns. A custom
method needs no entry: `m = my_module.MyAdapter(rank=8)` names its class.

A string of `adapters.use` lists the adapters in use and their composition.

    parse_trees("rte, mrpc")                         ("rte", "mrpc")         at different sites
    parse_trees("Stack(en, Fuse(sst2, nli))")        (Stack(("en", Fuse(("sst2", "nli")))),)
    write_trees(trees)                               the string again

`t5x_lite.adapters.composition` defines compositions such as Stack. None is the model without an
adapter.
"""

import ast
import dataclasses
import math
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from t5x_lite.adapters.base import Adapter
from t5x_lite.adapters.bottleneck import double_seq_bn, par_bn, seq_bn
from t5x_lite.adapters.bottleneck_variants import (
    Experts,
    Invertible,
    T5Adapter,
    compacter,
    compacter_plus_plus,
    hyper,
    seq_bn_inv,
)
from t5x_lite.adapters.composition import BLOCKS, Block, check_nesting, names_of
from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_merging import (
    AverageFactors,
    Dare,
    Fisher,
    Linear,
    PeftLinear,
    Svd,
    Ties,
    Union,
    Zhang,
    merge,
)
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.masks import Heads, Movement, Prune, Supermask, threshold
from t5x_lite.adapters.prefix import Prefix, Prompt, mam, unipelt
from t5x_lite.adapters.sparse import BitFit, Diff, Fastfood, Norms, Params, SparseTuning, said
from t5x_lite.adapters.whole_arrays import Copy, Layers
from t5x_lite.core import project
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
    """Named deltas (changes of a model's arrays) for an expression of `t5x-lite compose`.

    Attributes:
      deltas: name -> delta.
      diagonals: name -> diagonal of the Fisher information of each array, by path.
      materialise: function from a delta's name to the delta as dense arrays.
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
    """Evaluator of one parsed expression of `t5x-lite compose`."""

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
        raise InputError(
            "the function average does not accept weights; use the function linear for a weighted "
            "sum"
        )
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


METHODS: dict[str, Callable[..., Adapter]] = {
    "seq_bn": seq_bn,
    "double_seq_bn": double_seq_bn,
    "par_bn": par_bn,
    "compacter": compacter,
    "compacter_plus_plus": compacter_plus_plus,
    "hyper": hyper,
    "experts": Experts,
    "lora": Lora,
    "ia3": Ia3,
    "bitfit": BitFit,
    "norms": Norms,
    "params": Params,
    "layers": Layers,
    "copy": Copy,
    "heads": Heads,
    "prefix": Prefix,
    "inv": Invertible,
    "seq_bn_inv": seq_bn_inv,
    "mam": mam,
    "unipelt": unipelt,
    "prompt": Prompt,
    "t5_adapter": T5Adapter,
    "sparse": SparseTuning,
    "diff": Diff,
    "prune": Prune,
    "supermask": Supermask,
    "threshold": threshold,
    "movement": Movement,
    "fastfood": Fastfood,
    "said": said,
}
"""Method name -> constructor of the adapter config; all options have defaults."""

SHORT = {"r": "rank", "rslora": "rank_stabilised", "d": "width"}
"""Short option name -> complete name, for methods with an option of that name."""

FIRST = {"params": "train", "copy": "of", "heads": "sites"}
"""Method name -> option with an optional name, such as `train` for params("model/encoder/.*")."""

_DOTTED = re.compile(r"\w+(\.\w+)+")

RESERVED = ("base", "fusion", "head", "norms", "router")
"""Names with a special meaning in `adapters.train`, which adapters must not have."""


def parse_module(text: str) -> Adapter:
    """Parse a string of `adapters.add`, such as "rte = lora(r=8)", to an adapter config.

    Args:
      text: "NAME = METHOD(OPTION=VALUE, ...)", or several methods joined by +.

    Raises:
      InputError: with the column, for a syntax error, an unknown method or option, or an invalid
        value.
    """
    source = Source(text)
    statements = source.parsed.body
    statement = statements[0] if len(statements) == 1 else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        source.refuse(statements[-1] if statements else None, "expected NAME = METHOD(...)")
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        source.refuse(target, "the name of an adapter must be an identifier")
    if target.id in RESERVED:
        source.refuse(target, reserved(target.id))
    return source.module(target.id, statement.value)


def write_module(adapter: Adapter) -> str:
    """Return the string of `adapters.add` for an adapter config, without default options.

    Raises:
      InputError: if no adapter method has a config of this class.
    """
    if isinstance(adapter, Union):
        for method, constructor in METHODS.items():
            if constructor(name=adapter.name) == adapter:
                return f"{adapter.name} = {method}()"
        lines = [write_module(member).partition(" = ")[2] for member in adapter.members]
        return f"{adapter.name} = {' + '.join(lines)}"
    best: tuple[int, str] | None = None
    methods: dict[str, Callable[..., Adapter]] = {**METHODS, **_custom(type(adapter))}
    for method, constructor in methods.items():
        plain = constructor(name=adapter.name)
        if type(plain) is not type(adapter):
            continue
        fields = [field.name for field in dataclasses.fields(adapter) if field.name != "name"]
        options = [
            f"{name}={getattr(adapter, name)!r}"
            for name in fields
            if getattr(adapter, name) != getattr(plain, name)
        ]
        if best is None or len(options) < best[0]:
            best = len(options), f"{adapter.name} = {method}({', '.join(options)})"
    if best is None:
        raise InputError(
            f"no adapter method has a config of class {type(adapter).__name__}; the methods are "
            f"{', '.join(METHODS)}"
        )
    return best[1]


def options_of(method: str) -> dict[str, Any]:
    """Return the option names of an adapter method, such as "lora", with their types."""
    constructor = _constructor(method)
    config = type(constructor(name="module"))
    added = {} if isinstance(constructor, type) else typing.get_type_hints(constructor)
    fields = {field.name for field in dataclasses.fields(config)}
    if config is Union:  # its own fields are its methods, which the constructor makes
        fields = set()
    hints = {name: hint for name, hint in typing.get_type_hints(config).items() if name in fields}
    return {
        name: hint
        for name, hint in {**hints, **added}.items()
        if name not in ("name", "return", "changes")
    }


def _custom(adapter: type[Adapter]) -> dict[str, Callable[..., Adapter]]:
    known = {type(constructor(name="module")) for constructor in METHODS.values()}
    if adapter in known or getattr(sys.modules.get(adapter.__module__), adapter.__name__, 0) == 0:
        return {}
    if adapter.__module__ == "__main__":
        return {}
    return {f"{adapter.__module__}.{adapter.__name__}": adapter}


def _constructor(method: str) -> Callable[..., Adapter]:
    """Return the function or class that builds configs of an adapter method, such as "lora"."""
    if method in METHODS:
        return METHODS[method]
    module_name, _, class_name = method.rpartition(".")
    module = sys.modules.get(module_name)
    if module is None and not project.trusts(module_name):
        raise InputError(
            f"adapter {method} is not part of t5x_lite, and reading it would run the Python "
            f"module {module_name}; if you trust the checkpoint like a program, pass "
            "--trust-project (in Python: trust_project=True)"
        )
    try:
        module = module or project.import_module(module_name)
    except Exception as error:  # the module's own, too
        raise InputError(
            f"Python module {module_name} cannot be imported ({error}); run the command in the "
            "project that contains it"
        ) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        classes = [n for n, v in vars(module).items() if isinstance(v, type) and n != "Adapter"]
        raise InputError(
            f"Python module {module_name} has no adapter class "
            f"{class_name}{did_you_mean(class_name, classes)}"
        )
    return found


def reserved(name: str) -> str:
    """Return the error message for an adapter with a reserved name, such as "head"."""
    return (
        f"an adapter may not be called {name!r}, because adapters.train uses this name for other "
        "parameters; choose another name"
    )


class Source:
    """Parser of one string of `adapters.add` or `adapters.use`; its errors name the column.

    Args:
      text: string to parse.

    Raises:
      InputError: if the string is not a Python expression or assignment.
    """

    def __init__(self, text: str):
        self._text = text = text.strip()
        if len(text.splitlines()) > 1:
            self._fail(len(text.splitlines()[0]) + 1, "an adapter must be described on one line")
        try:
            with warnings.catch_warnings():
                # "\w" in a regular expression: a SyntaxWarning, or a DeprecationWarning.
                warnings.simplefilter("ignore")
                self.parsed = ast.parse(text)
        except SyntaxError as error:
            self._fail(error.offset or 1, error.msg)
        except (ValueError, RecursionError, MemoryError) as error:
            self._fail(1, str(error) or "nested too deeply")

    def refuse(self, node: ast.AST | None, reason: str) -> NoReturn:
        """Raise InputError with a reason, and the column of the error in the parsed string."""
        start = getattr(node, "col_offset", 0)  # in bytes of UTF-8
        line = self._text.encode().splitlines()[:1] or [b""]
        self._fail(len(line[0][:start].decode(errors="replace")) + 1, reason)

    def refuse_others(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self.refuse(node, "a union of methods, a + b, is only allowed in adapters.add")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in BLOCKS:
                self.refuse(
                    node, f"the block {name} composes adapters and is only allowed in adapters.use"
                )

    def module(self, name: str, node: ast.expr) -> Adapter:
        """Parse METHOD(OPTION=VALUE, ...), or several methods joined by +, to an adapter config."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            members = tuple(self.module(name, each) for each in _summands(node))
            try:
                return Union(name=name, members=members)
            except InputError as error:
                self.refuse(node, str(error))
        if isinstance(node, ast.Name) and node.id in METHODS:
            self.refuse(node, f"a method needs brackets, such as {node.id}()")
        if not isinstance(node, ast.Call):
            self.refuse_others(node)
            self.refuse(node, "expected METHOD(OPTION=VALUE, ...)")
        method = ast.unparse(node.func)
        if method not in METHODS and not _DOTTED.fullmatch(method):
            self.refuse_others(node)
            method = shortened(method)
            self.refuse(
                node,
                f"unknown adapter method {method}{did_you_mean(method, METHODS)}; the methods are "
                f"{', '.join(METHODS)}, or your own module.Class",
            )
        try:
            constructor = _constructor(method)
        except InputError as error:
            self.refuse(node, str(error))
        keywords = [*self._first(method, node.args), *node.keywords]
        options = dict(self._option(method, keyword) for keyword in keywords)
        if len(options) < len(keywords):
            self.refuse(node, "an option is given twice")
        try:
            return constructor(name=name, **options)
        except InputError as error:
            self.refuse(node, str(error))

    def _first(self, method: str, values: list[ast.expr]) -> list[ast.keyword]:
        if not values:
            return []
        if method not in FIRST:
            self.refuse(values[0], f"options of {method} have names: OPTION=VALUE")
        joined = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
        ast.copy_location(joined, values[0])
        return [ast.copy_location(ast.keyword(FIRST[method], joined), joined)]

    def _option(self, method: str, keyword: ast.keyword) -> tuple[str, Any]:
        known, given = options_of(method), keyword.arg
        if given is None:
            self.refuse(keyword, f"options of {method} have names: OPTION=VALUE")
        field = given if given in known else SHORT.get(given, given)
        if field not in known:
            short = {full: f"{full} (or {name})" for name, full in SHORT.items()}
            near = did_you_mean(given, [*known, *(s for s, full in SHORT.items() if full in known)])
            options = ", ".join(short.get(name, name) for name in known)
            self.refuse(
                keyword, f"method {method} has no option {given}{near}; its options are {options}"
            )
        return field, self.value(keyword, known[field])

    def value(self, keyword: ast.keyword, hint: Any) -> Any:
        """Convert the value of an option, as in OPTION=VALUE, to the type of the option."""
        given = keyword.arg
        try:
            value = _plain(ast.literal_eval(keyword.value))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            self.refuse(keyword.value, f"the value of {given} must be a number, string or tuple")
        try:
            return _fitted(value, hint)
        except TypeError:
            self.refuse(
                keyword.value,
                f"{given} must be {_described(hint)}: got {shortened(ast.unparse(keyword.value))}",
            )

    def _fail(self, column: int, reason: str) -> NoReturn:
        raise InputError(f"column {column} of {shown(self._text)}: {reason}")


def _summands(node: ast.expr) -> list[ast.expr]:
    """Return the list [a, b, c] of the terms of a + b + c."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _plain(value: Any) -> Any:
    """Convert lists and dicts to tuples, to make a config hashable."""
    if isinstance(value, dict):
        return tuple((_plain(key), _plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError


def _fitted(value: Any, hint: Any) -> Any:
    """Convert a value to the type of an option, such as an int to a float."""
    origin = get_origin(hint)
    if origin is typing.Union or origin is types.UnionType:
        exact = [each for each in get_args(hint) if isinstance(each, type) and type(value) is each]
        for each in (*exact, *get_args(hint)):
            try:
                return _fitted(value, each)
            except TypeError:
                continue
        raise TypeError
    if origin is Literal:
        if value in get_args(hint) and type(value) in {type(each) for each in get_args(hint)}:
            return value
        raise TypeError
    if origin is tuple:
        items = get_args(hint)
        values = value if isinstance(value, tuple) else (value,)
        if len(items) == 2 and items[1] is Ellipsis:
            return tuple(_fitted(each, items[0]) for each in values)
        if len(items) != len(values):
            raise TypeError
        return tuple(_fitted(each, item) for each, item in zip(values, items, strict=True))
    if hint is Any:
        return value
    if hint is float and type(value) in (int, float):
        return _finite(value)
    if hint is type(None) and value is None:
        return None
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise TypeError


def _finite(value: float | int) -> float:
    try:
        number = float(value)
    except OverflowError as error:
        raise TypeError from error
    if not math.isfinite(number):
        raise TypeError
    return number


def _described(hint: Any) -> str:
    """Return a description of a type for error messages, such as "a whole number"."""
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(repr(each) for each in get_args(hint))
    if origin is typing.Union or origin is types.UnionType:
        return " or ".join(map(_described, get_args(hint)))
    if origin is tuple:
        return f"a tuple of {_described(get_args(hint)[0])}"
    words = {
        int: "a whole number",
        float: "a finite number",
        str: "a string",
        bool: "True or False",
    }
    return words.get(hint, "None" if hint is type(None) else str(hint))


_EXPECTED = "expected adapter names, or blocks such as Stack(a, b), separated by commas"


def parse_trees(text: str) -> tuple[str | Block, ...]:
    """Parse a string of `adapters.use` to compositions of adapters; "" gives ().

    Raises:
      InputError: with the column, for a syntax error, or an unknown composition or option.
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
            source.refuse(node, "None (the model without an adapter) is only allowed in a block")
        if tree in trees:
            source.refuse(node, f"adapter or block {str(tree)!r} is named twice")
        trees.append(tree)
    try:
        check_nesting(trees)
    except InputError as error:
        source.refuse(value, str(error))
    return tuple(trees)


def parse_use(text: str) -> tuple[str, ...]:
    """Return the names of the adapters in a string of `adapters.use`, without duplicates.

    Raises:
      InputError: if the string is invalid.
    """
    return names_of(parse_trees(text))


def write_trees(trees: Sequence[str | Block]) -> str:
    """Return the string of `adapters.use` for compositions of adapters."""
    return ", ".join(map(str, trees))


def _tree(source: Source, node: ast.expr) -> str | Block | None:
    if isinstance(node, ast.Name):
        if node.id in BLOCKS:
            source.refuse(
                node, f"block {node.id} needs children in brackets, such as {node.id}(a, b)"
            )
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
        source.refuse(node, f"unknown block {name}{near}; the blocks are {', '.join(BLOCKS)}")
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
            has = f"its options are {', '.join(hints)}" if hints else "it takes no options"
            near = did_you_mean(str(keyword.arg), hints)
            source.refuse(keyword, f"block {name} has no option {keyword.arg}{near}; {has}")
        options[keyword.arg] = source.value(keyword, hints[keyword.arg])
    try:
        return block(children, **options)
    except InputError as error:
        source.refuse(node, str(error))
