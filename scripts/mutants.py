"""Seeded mutants of t5x_lite: small faults, and whether the fast tests of a module find them.

    python scripts/mutants.py --number 200 --seed 0 --output mutants.jsonl

A mutant changes one comparison, sum, condition, integer or returned value in one file of a scratch
copy of the checkout. Test files that import its module run there until a test fails: first those
that name the changed function, or a public one that calls it, then those of the module's own name,
then small ones. Each mutant is a JSON line: `killed`, `survived`, `timeout` or, where no test file
imports the module, `untested`. Mutants that the output has are not run again; --again runs those
again that were not killed.

Each run is forked from a process that has imported JAX and TensorFlow, which saves most of its
time. The choice depends on the package and the seed only, so two states of the tests can be
compared: run the script on both with --checkout.
"""

import argparse
import ast
import collections
import dataclasses
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAST = "not slow and not oracle and not exhaustive"
IMPORTED_ONCE = ("jax", "flax.nnx", "optax", "orbax.checkpoint", "tensorflow", "pytest", "scipy")

OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not",
    "is not": "is", "in": "not in", "not in": "in", "+": "-", "-": "+", "and": "or", "or": "and",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Bytes of a file that are replaced.

    Attributes:
      path: file below the checkout.
      start: first byte.
      end: byte after the last one.
      new: replacement.
      line: line of the file, from 1.
      names: names of the changed function and of what calls it in the file; tests may use them.
    """

    path: str
    start: int
    end: int
    new: str
    line: int
    names: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> Iterator[Mutant]:
    """All mutants of a file, function by function."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def begin(node: ast.expr | ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def between(left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        for match in re.finditer(rb"[^\s()]+( not| in)?", source[end(left) : begin(right)]):
            if new := OPERATORS.get(match.group().decode()):
                at = end(left)
                yield Mutant(path, at + match.start(), at + match.end(), new, right.lineno)
                return

    def of(node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, comparators=[right]):
                yield from between(left, right)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                yield from between(left, right)
            case ast.BoolOp(values=[left, right, *_]):
                yield from between(left, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield Mutant(path, begin(node), begin(operand), "", node.lineno)
            case ast.If(test=test) | ast.IfExp(test=test):
                text = source[begin(test) : end(test)].decode()
                yield Mutant(path, begin(test), end(test), f"not ({text})", test.lineno)
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                yield Mutant(path, begin(node), end(node), str(value + 1), node.lineno)
            case ast.Return(value=ast.expr() as value):
                yield Mutant(path, begin(value), end(value), "None", node.lineno)

    tree = ast.parse(source)
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    used = {node.name: _names(node) for node in definitions}
    callers = {
        function: frozenset({*_callers(definition.name, used), function.name})
        for definition in definitions
        for function in ast.walk(definition)
        if isinstance(function, ast.FunctionDef)
    }
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                    for node in ast.walk(statement):
                        for mutant in of(node):
                            names = callers.get(function, frozenset())
                            yield dataclasses.replace(mutant, names=names)


def _names(tree: ast.AST) -> set[str]:
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _callers(name: str, used: dict[str, set[str]]) -> set[str]:
    """A definition's name and, if it is private, the names of those that use it."""
    found, new = set[str](), {name}
    while new:
        found |= new
        private = {each for each in new if each.startswith("_")}
        new = {user for user, names in used.items() if names & private} - found
    return found


def tests_of(checkout: Path) -> dict[str, dict[str, str]]:
    """Sources of the test files that import each file of the package, the smallest first."""
    found: dict[str, dict[str, str]] = collections.defaultdict(dict)
    tests = sorted((checkout / "tests").rglob("test_*.py"), key=lambda file: file.stat().st_size)
    for test in tests:
        source = test.read_text()
        names = set(re.findall(r"t5x_lite(?:\.\w+)+", source))
        for package, imported in re.findall(r"from (t5x_lite[\w.]*) import \(?([\w\s,]+)", source):
            names |= {f"{package}.{name}" for name in re.findall(r"\w+", imported)}
        for name in names:
            path = f"{name.replace('.', '/')}.py"
            if (checkout / path).is_file():
                found[path][str(test.relative_to(checkout))] = source
    return found


def chosen_tests(mutant: Mutant, tests: dict[str, str], most: int) -> list[str]:
    """The test files that run for a mutant."""
    own = f"test_{Path(mutant.path).stem}.py"
    names = {name for name in mutant.names if not name.startswith("__")}

    def order(test: str) -> tuple[bool, bool]:
        named = any(re.search(rf"\b{name}\b", tests[test]) for name in names)
        return not named, Path(test).name != own

    return sorted(tests, key=order)[:most]


def run(checkout: Path, tests: list[str], seconds: float) -> str:
    """The outcome of some test files, in a fork."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.chdir(checkout)
        os.environ["PYTHONPATH"] = sys.path[0] = str(checkout)
        import pytest

        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", FAST]
        os._exit(int(pytest.main([*options, *tests])))
    deadline = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.05)
    # 5: all tests of these files are deselected.
    return {0: "survived", 5: "untested"}.get(os.waitstatus_to_exitcode(ended[1]), "killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--files", type=int, default=3, help="maximum test files of a mutant")
    parser.add_argument("--seconds", type=float, default=240.0, help="maximum time of a mutant")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    parser.add_argument("--only", nargs="*", help="only mutants whose tests include these files")
    options = parser.parse_args()
    sources = {
        str(path.relative_to(options.checkout)): path.read_bytes()
        for path in sorted((options.checkout / "t5x_lite").rglob("*.py"))
    }
    every = [mutant for path, source in sources.items() for mutant in mutants_of(path, source)]
    every = [*dict.fromkeys(every)]  # a function within a function is walked twice
    chosen = random.Random(options.seed).sample(every, options.number)
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    records = {record["number"]: record for record in map(json.loads, lines)}
    known = {
        number
        for number, record in records.items()
        if not options.again or record["outcome"] in ("killed", "timeout")
    }
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    sys.dont_write_bytecode = False  # the scratch copy keeps it from run to run
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    tests = tests_of(options.checkout)
    # No TemporaryDirectory: tests of core/signals remove those of a process that ends.
    directory = Path(tempfile.mkdtemp())
    try:
        scratch = directory / "checkout"
        hidden = shutil.ignore_patterns(".*")
        shutil.copytree(options.checkout, scratch, ignore=hidden)
        for number, mutant in enumerate(chosen):
            own = chosen_tests(mutant, tests.get(mutant.path, {}), options.files)
            if number in known or (options.only and not {*own} & {*options.only}):
                continue
            source, file = sources[mutant.path], scratch / mutant.path
            file.write_bytes(mutant.apply(source))
            begin = time.monotonic()
            outcome = run(scratch, own, options.seconds) if own else "untested"
            shutil.copy2(options.checkout / mutant.path, file)  # its bytecode is valid again
            old = source[mutant.start : mutant.end].decode()
            record = {
                "number": number, "outcome": outcome, "path": mutant.path, "line": mutant.line,
                "old": old, "new": mutant.new, "tests": own,
                "seconds": round(time.monotonic() - begin, 1),
            }  # fmt: skip
            records[number] = record
            with options.output.open("a") as lines_file:
                lines_file.write(json.dumps(record) + "\n")
    finally:
        shutil.rmtree(directory)
    print(json.dumps(collections.Counter(record["outcome"] for record in records.values())))


if __name__ == "__main__":
    main()
