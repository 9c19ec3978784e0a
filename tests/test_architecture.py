"""The rules of docs/adr that no other tool checks: names, sizes, seams, imports at run time."""

import ast
import functools
import os
import pathlib
import re
import resource
import subprocess
import sys
import tokenize
import warnings

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "t5x_lite"

CHAPTER_LINES = 200  # a file of this length is a chapter and has a test file of its own
LONG_FILE_LINES = 900  # a file above this length is reported
BANNED_MODULE_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
FLAX_PACKAGES = {"adapters", "models", "nn", "objectives"}
BANNED_NNX = {"Metric", "Optimizer", "StateAxes", "grad", "jit", "pmap", "scan", "vmap"}
HEAVY = ("apache_beam", "seqio", "tensorflow", "tensorflow_datasets", "torch", "transformers")
# The same modules as in pyproject.toml's contract "heavy".
HEAVY_MODULES = {
    "c4/beam.py",
    "core/beam.py",
    "data/cache/making_beam.py",
    "data/elements.py",
    "data/loading.py",
    "data/reading.py",
    "data/tasks/stages.py",
    "data/tasks/table_source.py",
    "data/tasks/text_source.py",
}

# Hosts are spelt in two halves so that this file does not name them.
REGISTRIES = ["py" + "pi.org", "pythonhost" + "ed.org", "npm" + "js.org", "npm" + "js.com"]
MACHINE_PATHS = r"(?<![\w.}~])/(?:home|mnt|opt|root|Users|work)/\w"


def python_files(*folders: str) -> list[pathlib.Path]:
    """Python files of folders of the repository, sorted."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def package_path(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def source_files() -> list[pathlib.Path]:
    """Every file that belongs to the repository, committed or not."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def imported_modules(tree: ast.Module) -> set[str]:
    """Full names that a module imports, the names after `from` included."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def nnx_violations(tree: ast.Module) -> list[str]:
    """What a module does with Flax that docs/adr/0001 bans."""
    uses_nnx = "flax.nnx" in imported_modules(tree)
    violations = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "nnx" and node.attr in BANNED_NNX:
            violations.append(f"line {node.lineno}: nnx.{node.attr}")
        elif uses_nnx and node.attr in {"perturb", "sow"}:
            violations.append(f"line {node.lineno}: .{node.attr}")
        elif uses_nnx and node.attr == "value" and ast.unparse(node.value) != "self":
            violations.append(f"line {node.lineno}: .value")  # self.value projects to values
    return violations


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from flax import nnx\nstep = nnx.jit(f)", ["line 2: nnx.jit"]),
        ("from flax import nnx\nx = self.kernel.value", ["line 2: .value"]),
        ("from flax import nnx\nself.sow(x)", ["line 2: .sow"]),
        ("from flax import nnx\nx = nnx.Param(y)[...]", []),
        ("from flax import nnx\nheads = self.value(source)", []),
        ("import ast\nx = node.value", []),
    ],
)
def test_nnx_violations_are_found(source, expected):
    assert nnx_violations(ast.parse(source)) == expected


def test_every_chapter_has_a_test_file():
    missing = []
    for path in python_files("t5x_lite"):
        test_path = ROOT / "tests" / path.relative_to(PACKAGE).with_name(f"test_{path.name}")
        is_chapter = len(path.read_text().splitlines()) >= CHAPTER_LINES
        if is_chapter and not path.stem.startswith("__") and not test_path.is_file():
            missing.append(f"t5x_lite/{package_path(path)} -> {test_path.relative_to(ROOT)}")
    assert missing == []


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in python_files("t5x_lite")}
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_files_above_900_lines_are_reported():
    for path in python_files("t5x_lite", "tasks", "configs", "tests", "scripts"):
        length = len(path.read_text().splitlines())
        if length > LONG_FILE_LINES:
            name = path.relative_to(ROOT)
            warnings.warn(f"{name} has {length} lines; does it have two subjects?", stacklevel=1)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def code_lines(path: pathlib.Path) -> tuple[int, int]:
    """The lines of code of a file, without docstrings, comments and blanks; and its imports."""
    code, imports = set(), set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with path.open() as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in skipped | {tokenize.ENDMARKER}:
                code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parsed(path)):
        lines = range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1)
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            code.difference_update(lines)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(lines)
    return len(code), len(imports & code)


def test_the_package_has_few_files_and_no_small_ones():
    """The goals of docs/adr/0014; a number here is lowered, never raised."""
    counted = {package_path(path): code_lines(path) for path in python_files("t5x_lite")}
    assert len(counted) <= 251
    small = {name for name, (code, _) in counted.items() if code < 40}
    small = {name for name in small if not name.endswith("__init__.py")}
    assert small == {"__main__.py", "core/beam.py"}
    code, imports = map(sum, zip(*counted.values(), strict=True))
    assert imports <= 0.076 * code


def test_one_step_is_read_in_twelve_files():
    """The goal of the design is 4,200 lines; the number here is lowered, never raised."""
    text = (ROOT / "README.md").read_text()
    start = text.index("One step, from cached tokens to an update")
    names = re.findall(r"`([a-z0-9_/]+\.py)`", text[start : text.index("\n\n", start)])
    assert len(names) == 12
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in names) <= 5350


def test_docstrings_are_a_third_of_the_code():
    """The goal of the design; the number is lowered, never raised."""
    docs = sum(docstring_lines(parsed(path)) for path in python_files("t5x_lite"))
    code = sum(code_lines(path)[0] for path in python_files("t5x_lite"))
    assert docs <= 0.311 * code


def docstring_lines(tree: ast.AST) -> int:
    """The lines of strings that stand as statements."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
    )


def test_no_module_is_named_after_nothing():
    files = python_files("t5x_lite", "tasks", "configs", "tests", "scripts")
    names = {path.relative_to(ROOT) for path in files}
    assert [str(n) for n in sorted(names) if BANNED_MODULE_NAMES & {n.stem, *n.parent.parts}] == []


@pytest.mark.slow
def test_the_functional_dialect_of_flax():
    violations = [
        f"{package_path(path)} {violation}"
        for path in python_files("t5x_lite")
        for violation in nnx_violations(parsed(path))
    ]
    assert violations == []


def test_flax_is_imported_in_the_layers_of_modules_only():
    importers = {
        package_path(path)
        for path in python_files("t5x_lite")
        if any(name.split(".")[0] == "flax" for name in imported_modules(parsed(path)))
    }
    assert {name for name in importers if name.split("/")[0] not in FLAX_PACKAGES} == set()


def test_no_sharing_goes_through_signatures():
    threaded = {
        f"{package_path(path)}: {function.name}"
        for path in python_files("t5x_lite")
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef)
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.arg in {"shared", "tables", "lender", "lenders", "borrow"}
    }
    assert threaded == set()


CONFIG_ROOTS = ("models", "objectives")


RUNNERS = tuple(f"t5x_lite/{room}" for room in ("evaluate", "plan", "retrieval", "serve", "train"))


def test_a_run_asks_configs_and_does_not_look_at_their_types():
    """A model, a head or an objective of one's own works in every command."""
    classes = {
        node.name
        for root in CONFIG_ROOTS
        for path in python_files(f"t5x_lite/{root}")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for path in python_files(*RUNNERS):
        for call in ast.walk(parsed(path)):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            names = {n.id for a in call.args[1:2] for n in ast.walk(a) if isinstance(n, ast.Name)}
            checked = call.func.id in ("isinstance", "issubclass") and names & classes
            asked = ast.unparse(call.args[0]) if call.args else ""
            guessed = (
                call.func.id == "getattr"
                and len(call.args) == 3
                and re.search(r"experiment|model|objective|head|config|data", asked)
            )
            if checked or guessed:
                found.append(f"{package_path(path)}:{call.lineno}: {ast.unparse(call)}")
    assert found == []


def test_layouts_are_not_compared_with_strings():
    found = []
    for path in python_files("t5x_lite", "tasks", "configs"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                if any(re.search(r"(data|arguments|job|self)\.layout(\.name)?$", s) for s in sides):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    # A vocabulary's layout says where its sentinels are.
    assert [one for one in found if not one.startswith("t5x_lite/data/vocabularies/")] == []


def defined_names(path: pathlib.Path) -> set[str]:
    """What other modules may import of one, wherever in it the name is bound."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return names


def imported_as(nodes: list[ast.AST]) -> dict[str, str]:
    """Name -> module that a file imports under it, from another module, and binds nowhere else."""
    found = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (ROOT / f"{node.module}.{alias.name}".replace(".", "/")).with_suffix(".py").is_file()
    }
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {name: module for name, module in found.items() if name not in stored}


@pytest.mark.slow
def test_what_is_used_of_our_own_modules_exists():
    """What is imported, read or replaced, of slow tests and scripts, too: no other tool looks."""
    ours = ("t5x_lite", "tasks", "configs", "tests", "scripts")
    defined, missing = {}, []

    def exists(module: str, name: str) -> bool:
        folder = ROOT / module.replace(".", "/")
        path = folder.with_suffix(".py")
        path = path if path.is_file() else folder / "__init__.py"
        if path not in defined:
            defined[path] = defined_names(path) if path.is_file() else set()
        inside = folder / name
        return inside.with_suffix(".py").is_file() or inside.is_dir() or name in defined[path]

    for path in python_files(*ours):
        if path.name == "test_renames.py":  # imports old names
            continue
        nodes = list(ast.walk(parsed(path)))
        modules = imported_as(nodes)
        for node in nodes:
            wanted = []
            if isinstance(node, ast.ImportFrom):
                wanted = [(str(node.module), alias.name) for alias in node.names]
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in modules:
                wanted = [(modules[node.value.id], node.attr)]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "setattr":
                # monkeypatch.setattr("t5x_lite.module.name", ...), or of a class in the module
                target = getattr(node.args[0], "value", None) if node.args else None
                parts = target.split(".") if isinstance(target, str) else []
                is_class = len(parts) > 2 and parts[-2][0].isupper()
                parts = parts[:-1] if is_class else parts
                wanted = [(".".join(parts[:-1]), "".join(parts[-1:]))]
                if getattr(node.args[0] if node.args else None, "id", None) in modules:
                    wanted = [(modules[node.args[0].id], getattr(node.args[1], "value", "__"))]
            missing += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {module}.{name}"
                for module, name in wanted
                if not name.startswith("__")
                if module.split(".")[0] in ours and not exists(module, name)
            ]
    assert missing == []


def test_no_private_names_of_jax_and_flax():
    private = {
        f"{package_path(path)}: {name}"
        for path in python_files("t5x_lite")
        for name in imported_modules(parsed(path))
        if name.split(".")[0] in {"flax", "grain", "jax", "jaxlib", "optax", "orbax"}
        and any(part.startswith("_") for part in name.split("."))
    }
    assert private == set()


def test_tasks_are_short():
    for path in python_files("tasks"):
        if path.name != "__init__.py":
            assert len(path.read_text().splitlines()) <= 150, path.name
            assert ast.get_docstring(parsed(path)), f"{path.name}: docstring"


def test_configs_are_declarations():
    logic = (ast.For, ast.While, ast.If, ast.IfExp, ast.comprehension, ast.Lambda, ast.ClassDef)
    for path in python_files("configs"):
        if path.name == "__init__.py":
            continue
        tree = parsed(path)
        assert ast.get_docstring(tree), f"{path.name}: docstring"
        assert len(path.read_text().splitlines()) <= 60, path.name
        assert [node.lineno for node in ast.walk(tree) if isinstance(node, logic)] == [], path.name


def test_no_registry_and_no_machine_path_in_the_tree():
    pattern = re.compile("|".join([*map(re.escape, REGISTRIES), MACHINE_PATHS]))
    found = []
    for path in source_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {match.group()}"
            for number, line in enumerate(text.splitlines(), 1)
            if (match := pattern.search(line))
        ]
    assert found == []


def test_constraints_are_exact_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.!+]*", line)
    ] == []
    assert len({line.split("==")[0].lower() for line in lines}) == len(lines)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )


@pytest.mark.slow
def test_the_package_imports_without_tensorflow():
    modules = [
        ".".join(("t5x_lite", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in python_files("t5x_lite")
        if package_path(path) not in HEAVY_MODULES and not path.stem.startswith("__")
    ]
    assert len(modules) > 10
    done = run_python(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_training_needs_neither_tensorflow_nor_the_command_line():
    """A GPU machine with JAX and Orbax alone trains from a cache."""
    rooms = ("adapters", "checkpoints", "config", "core", "inference", "models", "nn", "objectives")
    paths = python_files(*(f"t5x_lite/{room}" for room in (*rooms, "data/cache", "optim", "train")))
    names = {package_path(path) for path in paths} - HEAVY_MODULES - {"core/option_types.py"}
    modules = [f"t5x_lite.{name[:-3].replace('/', '.')}" for name in sorted(names)]
    done = run_python(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({('array_record', 'grain', 'tyro', *HEAVY)!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_help_imports_neither_jax_nor_tensorflow():
    done = run_python(
        "import sys\n"
        "from t5x_lite.cli import main\n"
        "sys.argv = ['t5x-lite', '--help']\n"
        "try: code = main()\n"
        "except SystemExit as end: code = end.code\n"
        f"heavy = sorted({{'flax', 'jax', 'numpy', *{HEAVY!r}}} & set(sys.modules))\n"
        "print(heavy, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train" in done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_answers_in_under_a_second():
    def seconds() -> float:
        """Of a processor, which other programs on this machine do not take."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "t5x_lite", "--help"], cwd=ROOT, capture_output=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 1.0
