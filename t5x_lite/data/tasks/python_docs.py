"""Corpus of the quickstart: English text from any Python installation.

It has two sources, which are parsed and not imported: the topics of `help()`
(`pydoc_data/topics.py`), and the docstrings of the standard library and of the installed packages.
The order is fixed (topics, then the standard library, then packages by name, each sorted by path),
so one installation always gives the same documents.

A *document* is one docstring or one topic on one line, with each run of whitespace as one space:

    documents()[0] -> Document(module="pydoc_data", name="assert", text="Assert statements are ...")

`labelled` makes a classification task of the same text: predict the package of a docstring.

    ("Compute the inverse hyperbolic tangent, element-wise ...", "numpy")

`python -m t5x_lite.data.tasks.python_docs DIR` writes DIR/documents.jsonl, which the tasks read
if data.directory is DIR, and DIR/documents.txt, one document per line, for `t5x-lite vocab
--input`. The corpus is then parsed once, and does not change with the installed packages.
"""

import ast
import collections
import functools
import gc
import hashlib
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from t5x_lite.data.formats.lines import read_examples, writer

MAX_BYTES = 10_000_000
"""Maximum total size of the documents, in bytes of UTF-8."""
MAX_PACKAGE_BYTES = 300_000
"""Maximum bytes of the documents of one top-level package, so that none dominates."""
MAX_FILE_BYTES = 400_000
"""Maximum bytes of a source file. Larger files are tables or generated code, with little prose."""
MIN_CHARS = 30
DOCUMENTS_FILE = "documents.jsonl"
MIN_LETTERS = 0.75
"""Minimum fraction of letters among a text's characters other than spaces."""

_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "test", "tests", "idle_test", "site-packages", "dist-packages"}
    | {"_vendor", "vendor", "vendored", "third_party", "node_modules"}
)
_TEST_FILE = re.compile(r"(test_.*|.*_test|.*_tests|conftest)\.py")
_RULE = re.compile(r"([-=~^*#_+.])\1{3,}")
_ALIASES = {"numpy": ("np",), "jax": ("jnp", "lax"), "tensorflow": ("tf", "tfe")}
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class Document:
    """One docstring or one help topic.

    Attributes:
      module: dotted name of the documented module; "pydoc_data" for help topics.
      name: class or function within the module ("Path.open"), "" for the module itself, or the
        topic's name.
      text: text on one line, with white space collapsed.
    """

    module: str
    name: str
    text: str


def documents(directory: str | os.PathLike[str] = "") -> list[Document]:
    """Return the docstrings and help topics of this Python installation, without exact repeats.

    The total size is at most `MAX_BYTES`.

    Args:
      directory: directory that `write_documents` wrote; "" parses the installed files (about ten
        seconds for the first call; later calls are cached).
    """
    if not directory:
        return list(_installed_documents())
    path = os.fspath(Path(directory, DOCUMENTS_FILE))
    fields = ("module", "name", "text")
    lines = read_examples(path, fields=fields)
    return [Document(**{name: line.record[name] for name in fields}) for line in lines]


def write_documents(directory: str | os.PathLike[str]) -> None:
    """Write the corpus to a directory: documents.jsonl, atomically, and documents.txt."""
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    with (root / "documents.txt").open("w", encoding="utf-8") as text:
        text.writelines(f"{document.text}\n" for document in documents())
    with writer(os.fspath(root / DOCUMENTS_FILE)) as file:
        for document in documents():
            file.write(asdict(document))


@functools.lru_cache(maxsize=1)
def _installed_documents() -> tuple[Document, ...]:
    return tuple(collect_documents(installed_roots()))


def installed_roots() -> list[Path]:
    """Return the standard library's folder, then the folders of installed packages."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [Path(path) for path in dict.fromkeys(os.path.realpath(path) for path in paths)]


def collect_documents(
    roots: Sequence[Path],
    *,
    max_bytes: int = MAX_BYTES,
    max_package_bytes: int = MAX_PACKAGE_BYTES,
) -> list[Document]:
    """Collect the documents of all packages in `roots`, help topics first, in a fixed order.

    Args:
      roots: folders that hold top-level packages and modules, such as site-packages. Missing
        folders, test folders, vendored copies and this package are skipped.
      max_bytes: maximum size of all documents, with one line break per document.
      max_package_bytes: maximum size of the documents of one top-level package.

    Returns:
      Documents without exact repeats; the first occurrence is kept.
    """
    seen: set[str] = set()
    chosen: list[Document] = []
    total = 0
    for candidates in _packages(roots):
        package_total = 0
        for document in candidates:
            size = len(document.text.encode()) + 1
            if document.text in seen:
                continue
            if package_total + size > max_package_bytes:
                break
            if total + size > max_bytes:
                return chosen
            seen.add(document.text)
            chosen.append(document)
            package_total += size
            total += size
    return chosen


def _packages(roots: Sequence[Path]) -> Iterator[Iterator[Document]]:
    """Yield an iterator of documents for each top-level package, help topics first."""
    for root in roots:
        topics = root / "pydoc_data" / "topics.py"
        if topics.is_file():
            yield _topic_documents(topics)
    done = {__name__.partition(".")[0], "pydoc_data"}
    for root in roots:
        if not root.is_dir():
            continue
        for entry in sorted(root.iterdir(), key=lambda path: path.name):
            name = entry.name.removesuffix(".py")
            if name in done or not name.isidentifier() or name in _SKIPPED_FOLDERS:
                continue
            done.add(name)
            yield _package_documents(root, entry)


def _topic_documents(path: Path) -> Iterator[Document]:
    tree = _parse(path)
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(node.value).items()):
                cleaned = clean_text(text)
                if cleaned:
                    yield Document(module="pydoc_data", name=name, text=cleaned)


def _package_documents(root: Path, entry: Path) -> Iterator[Document]:
    for path in _python_files(entry):
        tree = _parse(path)
        if tree is None:
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for name, docstring in _docstrings(tree):
            text = clean_text(docstring)
            if text:
                yield Document(module=module, name=name, text=text)


def _python_files(entry: Path) -> Iterator[Path]:
    if entry.is_file():
        if entry.suffix == ".py":
            yield entry
        return
    for folder, folders, files in os.walk(entry):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.endswith(".py") and not _TEST_FILE.fullmatch(name):
                yield Path(folder, name)


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file; None if unreadable, too large or without docstrings."""
    # A syntax tree has no cycles, and garbage collection takes a fifth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if path.stat().st_size > MAX_FILE_BYTES and path.name != "topics.py":
            return None
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source and path.name != "topics.py":
            return None
        with warnings.catch_warnings():
            # Warnings about other packages' sources, such as invalid escapes, are irrelevant here.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        if collecting:
            gc.enable()


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        name, node = pending.pop()
        if isinstance(node, (ast.Module, *_DEFINITIONS)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield name, docstring
        nested: list[tuple[str, ast.AST]] = []
        for field in ("body", "handlers", "orelse", "finalbody"):
            for child in getattr(node, field, ()):
                own = child.name if isinstance(child, _DEFINITIONS) else ""
                nested.append((".".join(filter(None, (name, own))), child))
        pending.extend(reversed(nested))


def clean_text(text: str) -> str | None:
    """Return the text as one line of prose, or None if it has too little prose.

    Underlines of headings are removed, and whitespace collapses to single spaces. A text is
    rejected if it has fewer than `MIN_CHARS` characters, is mostly punctuation and digits, or has
    control characters or lone surrogates.
    """
    line = " ".join(_RULE.sub(" ", text).split())
    if len(line) < MIN_CHARS or not line.isprintable():
        return None
    letters = sum(map(str.isalpha, line))
    return line if letters >= MIN_LETTERS * (len(line) - line.count(" ")) else None


def labelled(
    corpus: Iterable[Document] | None = None,
    *,
    num_labels: int = 12,
    max_per_label: int = 1000,
    min_chars: int = 60,
    max_chars: int = 400,
) -> list[tuple[str, str]]:
    """Make a classification task of documents: predict the top-level package of a text.

    The labels are the packages with the most documents. The names of all labels, and their usual
    abbreviations, are removed from every text, so that only the other words are evidence.

    Args:
      corpus: documents; None for `documents()`.
      num_labels: maximum number of packages.
      max_per_label: maximum examples of one label. A label also has at most 1.5 times as many
        examples as the rarest label, which keeps the majority class below 1.5 / num_labels.
      min_chars: minimum characters of a text. Shorter texts are skipped.
      max_chars: maximum characters of a text. Longer texts are truncated at a space.

    Returns:
      (text, label) pairs without repeated texts, in the order of a hash of the text. The first n
        pairs are a random sample, so the pairs can be split into training and test by position.
    """
    by_label: dict[str, list[str]] = collections.defaultdict(list)
    for document in documents() if corpus is None else corpus:
        label = document.module.partition(".")[0]
        if len(document.text) >= min_chars and label != "pydoc_data" and label[0] != "_":
            by_label[label].append(document.text)
    labels = sorted(by_label, key=lambda label: (-len(by_label[label]), label))[:num_labels]
    if not labels:
        return []
    names = [name for label in labels for name in (label, *_ALIASES.get(label, ()))]
    leak = re.compile(rf"(?<![a-z])(?:{'|'.join(map(re.escape, names))})(?![a-z])\.?", re.I)
    label_of: dict[str, str] = {}
    for label in labels:
        for text in by_label[label]:
            masked = _shorten(" ".join(leak.sub("", text).split()), max_chars)
            if len(masked) >= min_chars:
                label_of.setdefault(masked, label)
    return _balanced(label_of, max_per_label=max_per_label)


def _balanced(label_of: dict[str, str], *, max_per_label: int) -> list[tuple[str, str]]:
    """Return (text, label) pairs; no label is more than 1.5 times as frequent as the rarest."""
    digest = {text: hashlib.sha256(text.encode()).digest() for text in label_of}
    rarest = min(collections.Counter(label_of.values()).values(), default=0)
    room = dict.fromkeys(label_of.values(), min(max_per_label, rarest + rarest // 2))
    chosen = []
    # One half of the hash selects and the other half orders. If one half did both, the labels that
    # are cut would all be at the front.
    for text in sorted(label_of, key=lambda text: digest[text][:16]):
        if room[label_of[text]]:
            room[label_of[text]] -= 1
            chosen.append(text)
    return [(text, label_of[text]) for text in sorted(chosen, key=lambda text: digest[text][16:])]


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars + 1].rpartition(" ")[0]


def main(argv: Sequence[str]) -> int:
    """Write the corpus to the directory that is the only command-line argument."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: python -m t5x_lite.data.tasks.python_docs DIRECTORY", file=sys.stderr)
        return 2
    try:
        write_documents(argv[0])
    except OSError as error:
        print(f"error: {argv[0]}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
