"""Makes a corpus of some 30 million English words from Debian's packages, with labels and pairs.

    python scripts/bench/corpus.py --output CORPUS [--prose DIRECTORY] [--languages da it fr de]

Runs on any Debian or Ubuntu machine: `apt-get` of the machine downloads the packages into CORPUS
and installs nothing. Each source is written once, so that a second call resumes. A source that
cannot be downloaded is a line of the log.

    CORPUS/train/corpus.jsonl.gz         {"text", "title", "source"}: one document a line
    CORPUS/validation/corpus.jsonl.gz    the same: 1 % of the documents
    CORPUS/sections/{train,validation,test}.jsonl   {"text", "label"}: sections of packages
    CORPUS/pairs/NAME/{train,validation,test}.jsonl {"query", "pos", "neg"}; NAME is descriptions
                                         (short to long description), terms (to WordNet's gloss)
                                         or definitions (GCIDE's term to its text)
    CORPUS/parallel/LANGUAGE.jsonl       {"en", "LANGUAGE", "label"}: translated descriptions
    CORPUS/sizes.json                    documents, bytes and words of each source

Texts of the test splits are not in the corpus. A paragraph is kept if it has at least 8 words, ends
in punctuation, is four fifths letters and spaces, and has not been in a document before. The split
of a package depends on its source package, so that texts of one program stay together.

Sources (Debian 12; MB are of downloads; licences are those of /usr/share/doc/PACKAGE/copyright):

    descriptions   apt's Translation-en, 6 MB: the licences of the packages
    wordnet        wordnet-base, 6 MB: WordNet 3.0's licence, a free one
    gcide          dict-gcide, 15 MB: GPL
    foldoc         dict-foldoc, 2 MB: GFDL
    handbook       debian-handbook, 35 MB: CC-BY-SA-3.0 or GPL-2+
    installation   installation-guide-amd64, 18 MB: GPL-2
    gnome          gnome-user-docs, 9 MB: CC-BY-SA-3.0
    libreoffice    libreoffice-help-en-us, 2 MB: MPL-2.0
    linux          linux-doc, 40 MB: GPL-2
    python         python3-doc, 13 MB: PSF-2
    perl           perl-doc, 8 MB: Artistic or GPL-1+
    postgresql     postgresql-doc, 2 MB: PostgreSQL
    manpages       manpages and manpages-dev, 3 MB: GPL-2+, BSD and others
    anarchism      anarchism, 7 MB: GPL-2
    policy         debian-policy, developers-reference, debian-reference-en, 5 MB: GPL-2+, GPL-2
    gimp           gimp-help-en, 50 MB: GFDL
    fortunes       fortunes and fortunes-min, 1 MB: BSD
    prose          --prose DIRECTORY: a folder of .txt files, such as novels
"""

import argparse
import collections
import gzip
import hashlib
import html.parser
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Document = tuple[str, list[str]]
"""A title and paragraphs."""

SHORTEST = 8
HELD_OUT = 0.01
SPLITS = ("train", "validation", "test")
_ENDS = tuple(".!?:;\"')]”’")
_SPACE = re.compile(r"\s+")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", required=True, help="folder of the corpus")
    parser.add_argument("--prose", help="folder of .txt files to include")
    parser.add_argument("--languages", nargs="*", default=[], help="of translated descriptions")
    parser.add_argument("--only", nargs="+", help="sources to make; all if not given")
    return parser.parse_args(arguments)


# Text.


def joined(text: str) -> str:
    """Collapse white space."""
    return _SPACE.sub(" ", text).strip()


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph reads like sentences."""
    if len(paragraph.split()) < SHORTEST or not paragraph.endswith(_ENDS):
        return False
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    return letters >= 0.8 * len(paragraph)


def share_of(name: str) -> float:
    """A number in [0, 1) that depends on a name only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


class Paragraphs(html.parser.HTMLParser):
    """Title and paragraphs of HTML, DocBook or Mallard; code, tables and navigation are skipped."""

    BLOCKS = frozenset(
        ("p", "para", "simpara", "div", "li", "dd", "dt", "td", "th", "tr", "section", "title")
    ) | {"item", "body", "h1", "h2", "h3", "h4", "h5", "h6"}
    SKIPPED = frozenset(
        ("pre", "script", "style", "nav", "code-block", "programlisting", "screen", "table", "info")
    )
    HEADINGS = frozenset(("title", "h1"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.found: list[str] = []
        self._text: list[str] = []
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in self.SKIPPED:
            self._skipping += 1
        if tag in self.BLOCKS:
            self._end()

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        if tag in self.BLOCKS:
            if tag in self.HEADINGS and not self.title:
                self.title = joined("".join(self._text)).replace("¶", "")
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._text.append(data)

    def _end(self) -> None:
        text = joined("".join(self._text)).replace("¶", "")
        self._text = []
        if text:
            self.found.append(text)


def from_markup(text: str) -> Document:
    parser = Paragraphs()
    parser.feed(text)
    parser.close()
    return parser.title, parser.found


def from_plain(text: str) -> Document:
    """Paragraphs of plain text; the title is the first line."""
    blocks = [joined(block) for block in re.split(r"\n\s*\n", text)]
    return (blocks[0][:80] if blocks else "", [block for block in blocks if block])


def from_pod(text: str) -> Document:
    """Paragraphs of Perl's documentation; indented lines are code."""
    title, found = "", []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("="):
            if block.startswith("=head1 NAME"):
                title = "NAME"
        elif not block.startswith((" ", "\t")):
            block = re.sub(r"[A-Z]<<+ (.*?) >>+", r"\1", block.replace("->", "-\0"))
            for _ in range(3):
                block = re.sub(r"[A-Z]<([^<>]*)>", r"\1", block)
            block = block.replace("-\0", "->")
            block = joined(block)
            if title == "NAME":
                title = block
            found.append(block)
    return title, found


def from_roff(text: str) -> Document:
    """Paragraphs of a manual page."""
    title, found, lines, code = "", [], [], False

    def end() -> None:
        if lines:
            found.append(joined(" ".join(lines)))
            lines.clear()

    for line in text.splitlines():
        if line.startswith((".\\", "'")):
            continue
        macro, _, rest = line.partition(" ") if line.startswith(".") else ("", "", line)
        if macro in (".nf", ".EX"):
            code = True
        if macro in (".fi", ".EE"):
            code = False
        rest = re.sub(r"\\f[A-Z]|\\f\(..|\\f\[.*?\]|\\[&/,|^%]|\\s[-+]?\d", "", rest)
        rest = rest.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")
        rest = re.sub(r"\\\(?[a-z\"*]{2}|\\\[[^\]]*\]|\\", "", rest)
        if macro == ".TH":
            title = rest.split(" ")[0].strip('"').lower()
        elif macro in (".B", ".I", ".R", ".SM"):
            lines.append(rest.replace('"', ""))
        elif macro in (".BR", ".IR", ".RB", ".RI", ".BI", ".IB"):
            lines.append("".join(re.findall(r'"[^"]*"|\S+', rest)).replace('"', ""))
        elif macro or not rest.strip():
            end()
        elif not code:
            lines.append(rest)
    end()
    return title, found


def from_dictd(index: bytes, content: bytes) -> Iterator[tuple[str, str]]:
    """Headwords and entries of a dictionary of dictd.

    A number of the index has a digit for each 6 bits, in the order of base 64's alphabet.
    """
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    places = {letter: place for place, letter in enumerate(letters)}

    def number(digits: str) -> int:
        value = 0
        for digit in digits:
            value = value * 64 + places[digit]
        return value

    seen = set()
    for line in index.decode("utf-8").splitlines():
        word, start, size = line.split("\t")[:3]
        place = number(start), number(size)
        if word.startswith("00") or place in seen:
            continue
        seen.add(place)
        yield word, content[place[0] : sum(place)].decode("utf-8", "replace")


# Packages.


class Apt:
    """The machine's apt, with lists and downloads in a folder of their own."""

    def __init__(self, folder: Path, languages: Iterable[str]):
        self.folder = folder.absolute()
        for name in ("lists/partial", "cache/archives/partial", "packages"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        quoted = " ".join(f'"{language}";' for language in ("en", *languages))
        self._config = self.folder / "apt.conf"
        config = (
            f"#clear Acquire::Languages;\nAcquire::Languages {{ {quoted} }};\n"
            f'Dir::State::lists "{self.folder}/lists";\nDir::Cache "{self.folder}/cache";\n'
            'APT::Sandbox::User "root";\n'
        )
        if not self._config.exists() or self._config.read_text() != config:
            self._config.write_text(config)
            self.run("apt-get", "update")

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        command = [program, f"-c={self._config}", "-q", *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "replace")

    def package(self, pattern: str) -> Path:
        """Download the newest package with a name that matches; return the folder of its files."""
        names = self.run("apt-cache", "search", "--names-only", f"^{pattern}$").splitlines()
        versions = {name.split(" ")[0] for name in names}
        if not versions:
            raise FileNotFoundError(f"no package {pattern}")
        key = lambda name: [int(part) for part in re.findall(r"\d+", name)]  # noqa: E731
        name = max(versions, key=key)
        folder = self.folder / "packages" / name
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                self.run("apt-get", "download", name, cwd=Path(scratch))
                (file,) = Path(scratch).glob("*.deb")
                print(f"{name}: {file.stat().st_size / 1e6:.1f} MB", flush=True)
                partial = folder.with_name(f"{name}.partial")
                subprocess.run(["dpkg-deb", "-x", str(file), str(partial)], check=True)
                partial.rename(folder)
        return folder

    def descriptions(self, language: str) -> dict[str, tuple[str, str]]:
        """MD5 sum -> short and long description."""
        files = self.run(
            "apt-get", "indextargets", "--format", "$(FILENAME)", f"Language: {language}"
        )
        found: dict[str, tuple[str, str]] = {}
        for file in sorted(filter(os.path.exists, files.split())):
            text = self.run("/usr/lib/apt/apt-helper", "cat-file", file)
            found |= {entry[0]: entry[1:] for entry in described(text, language)}
        return found

    def packages(self) -> Iterator[dict[str, str]]:
        """Fields of each package that can be installed."""
        yield from stanzas(self.run("apt-cache", "dumpavail"))


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Fields of paragraphs in Debian's format; lines of a field are kept apart."""
    for stanza in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith((" ", "\t")):
                fields[name] += "\n" + line[1:]
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


def described(text: str, language: str) -> Iterator[tuple[str, str, str]]:
    """MD5 sum, short and long description of each stanza of a Translation file."""
    for fields in stanzas(text):
        content = fields.get(f"Description-{language}", "")
        short, _, rest = content.partition("\n")
        if "Description-md5" not in fields or not short:
            continue
        blocks, lines = [], []
        for line in [*rest.split("\n"), "."]:
            if line.strip() == ".":
                blocks.append(joined(" ".join(lines)))
                lines = []
            elif line.startswith((" ", "\t")) and lines and line.lstrip()[:1] in "*-+o":
                blocks.append(joined(" ".join(lines)))
                lines = [line]
            else:
                lines.append(line)
        yield fields["Description-md5"], short, "\n".join(filter(None, blocks))


def files_below(folder: Path, pattern: str) -> Iterator[str]:
    """Texts of the regular files that match, in the order of their paths."""
    for path in sorted(folder.glob(pattern)):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if path.suffix in (".gz", ".dz"):
                content = zlib.decompressobj(31).decompress(content)
            yield content.decode("utf-8", "replace")


def documents_of(packages: str, pattern: str, read: Callable[[str], Document]) -> Any:
    """A source: packages, the files in them, and how a file is read."""

    def source(apt: Apt) -> Iterator[Document]:
        for name in packages.split():
            for text in files_below(apt.package(name), pattern):
                yield read(text)

    return source


# Sources.


def dictionary(apt: Apt, package: str, stem: str) -> Iterator[tuple[str, str]]:
    folder = apt.package(package)
    (index,) = folder.glob(f"**/{stem}.index")
    (content,) = folder.glob(f"**/{stem}.dict.dz")
    yield from from_dictd(index.read_bytes(), gzip.decompress(content.read_bytes()))


def gcide_text(entry: str) -> str:
    """An entry without pronunciation, etymology and marks of cross-references."""
    entry = re.sub(r"\[[^\]]*\]|\\[^\\\n]*\\|[{}]|--\w+\.", " ", entry)
    return joined(entry.partition("\n")[2])


def gcide(apt: Apt) -> Iterator[Document]:
    for word, entry in dictionary(apt, "dict-gcide", "gcide"):
        if split_of(word) != "test":
            yield word, [gcide_text(entry)]


def foldoc(apt: Apt) -> Iterator[Document]:
    for word, entry in dictionary(apt, "dict-foldoc", "foldoc"):
        text = re.sub(r"[{}]", "", entry.partition("\n")[2])
        yield word, [joined(block) for block in re.split(r"\n\s*\n", text)]


def glosses(apt: Apt) -> Iterator[tuple[list[str], str]]:
    """Terms and gloss of each set of synonyms of WordNet."""
    folder = apt.package("wordnet-base")
    for text in files_below(folder, "**/data.*"):
        for line in text.splitlines():
            if not line.startswith(" ") and " | " in line:
                data, _, gloss = line.partition(" | ")
                parts = data.split(" ")
                terms = [parts[4 + 2 * i] for i in range(int(parts[3], 16))]
                names = [re.sub(r"\(.*\)$", "", term).replace("_", " ") for term in terms]
                yield list(dict.fromkeys(names)), gloss.strip()


def name_of(terms: list[str]) -> str:
    """The query of a set of synonyms."""
    return ", ".join(terms[:3])


def wordnet(apt: Apt) -> Iterator[Document]:
    for terms, gloss in glosses(apt):
        if split_of(name_of(terms)) != "test":
            yield terms[0], [f"{', '.join(terms)}: {gloss.rstrip('.; ')}."]


def described_packages(apt: Apt) -> Iterator[tuple[str, str, str, str, str]]:
    """MD5 sum, split, section, short and long description, each description once."""
    texts, seen = apt.descriptions("en"), set[str]()
    for fields in sorted(apt.packages(), key=lambda fields: fields.get("Package", "")):
        md5 = fields.get("Description-md5", "")
        section = fields.get("Section", "").rpartition("/")[2]
        short, long = texts.get(md5, ("", ""))
        if long and section and md5 not in seen:
            seen.add(md5)
            split = split_of(fields.get("Source", fields["Package"]).split(" ")[0])
            yield md5, split, section, short, long


def descriptions(apt: Apt) -> Iterator[Document]:
    for _, split, _, short, long in described_packages(apt):
        if split != "test":
            yield short, [f"{short}.", *long.split("\n")]


def fortunes(apt: Apt) -> Iterator[Document]:
    for package in ("fortunes-min", "fortunes"):
        folder = apt.package(package) / "usr/share/games/fortunes"
        for path in sorted(folder.glob("*")):
            if path.is_file() and not path.is_symlink() and "." not in path.name:
                for saying in path.read_text("utf-8", "replace").split("\n%\n"):
                    yield path.name, [joined(saying)]


SOURCES: dict[str, Callable[[Apt], Iterator[Document]]] = {
    "descriptions": descriptions,
    "wordnet": wordnet,
    "gcide": gcide,
    "foldoc": foldoc,
    "handbook": documents_of("debian-handbook", "**/html/en-US/*.html", from_markup),
    "installation": documents_of(r"installation-guide-amd64", "**/en/*.html", from_markup),
    "gnome": documents_of("gnome-user-docs", "usr/share/help/C/**/*.page", from_markup),
    "libreoffice": documents_of("libreoffice-help-en-us", "**/text/**/*.html", from_markup),
    "linux": documents_of(r"linux-doc-[0-9.]+", "**/html/**/*.html", from_markup),
    "python": documents_of(r"python3.[0-9]+-doc", "**/html/**/*.html", from_markup),
    "perl": documents_of("perl-doc", "**/*.pod", from_pod),
    "postgresql": documents_of(r"postgresql-doc-[0-9]+", "**/*.html", from_markup),
    "manpages": documents_of("manpages manpages-dev", "usr/share/man/man*/*.gz", from_roff),
    "anarchism": documents_of("anarchism", "**/*.html", from_markup),
    "policy": documents_of(
        "debian-policy developers-reference debian-reference-en", "**/*.html", from_markup
    ),
    "gimp": documents_of("gimp-help-en", "**/en/*.html", from_markup),
    "fortunes": fortunes,
}


def novels(folder: str) -> Iterator[Document]:
    """Chapters of about 2,000 words, since a document should not be a whole book."""
    for path in sorted(Path(folder).glob("*.txt")):
        _, found = from_plain(path.read_text("utf-8", "replace"))
        words, chapter = 0, []
        for paragraph in found:
            chapter.append(paragraph)
            words += paragraph.count(" ") + 1
            if words > 2000:
                yield path.stem, chapter
                words, chapter = 0, []
        yield path.stem, chapter


# Files.


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write a whole file of JSON lines, compressed if its name says so; return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, count = path.with_name(path.name + ".partial"), 0
    with open(partial, "wb") as raw:
        # No name and no time in the file: equal texts give equal bytes.
        file = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else raw
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            count += 1
        if file is not raw:
            file.close()
    partial.rename(path)
    return count


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def make_sources(options: argparse.Namespace, apt: Apt) -> list[str]:
    """Write each source that is not there yet; return the names of those that are."""
    makers: dict[str, Callable[[], Iterator[Document]]] = {
        name: (lambda made=made: made(apt)) for name, made in SOURCES.items()
    }
    if options.prose:
        makers["prose"] = lambda: novels(options.prose)
    there = []
    for name, made in makers.items():
        path = Path(options.output) / "sources" / f"{name}.jsonl.gz"
        if options.only and name not in options.only:
            continue
        try:
            if not path.exists():
                lines = ({"title": title, "paragraphs": text} for title, text in made())
                if not write_lines(path, lines):
                    path.unlink()
                    raise FileNotFoundError("no document was found in its files")
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            print(f"{name}: left out: {error}", flush=True)
            continue
        there.append(name)
    return there


def merge(output: Path, names: list[str]) -> dict[str, dict[str, int]]:
    """Write the documents of all sources without repeated paragraphs; return sizes."""
    seen: set[bytes] = set()
    sizes: dict[str, dict[str, int]] = {}
    lines: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    for name in names:
        counts = collections.Counter[str]()
        for document in read_lines(output / "sources" / f"{name}.jsonl.gz"):
            kept = []
            for paragraph in document["paragraphs"]:
                digest = hashlib.sha256(paragraph.casefold().encode()).digest()[:12]
                if digest not in seen and (is_prose(paragraph) or name in ("wordnet",)):
                    seen.add(digest)
                    kept.append(paragraph)
            if not kept:
                continue
            text, title = "\n".join(kept), document["title"]
            held = share_of(f"{name}/{title}/{kept[0]}") < HELD_OUT
            line = {"text": text, "title": title, "source": name}
            lines["validation" if held else "train"].append(line)
            counts.update(documents=1, bytes=len(text.encode()), words=len(text.split()))
        sizes[name] = dict(counts)
    for split, found in lines.items():
        random.Random(0).shuffle(found)
        write_lines(output / split / "corpus.jsonl.gz", found)
    return sizes


def split_of(name: str) -> str:
    """The split of a name: 8 % test, 4 % validation."""
    share = share_of(name)
    return "test" if share < 0.08 else "validation" if share < 0.12 else "train"


def pair(query: str, text: str) -> dict[str, Any]:
    """A line that `tasks.pairs:jsonl` reads."""
    return {"query": query, "pos": [text], "neg": []}


def labelled(output: Path, apt: Apt, languages: Iterable[str]) -> None:
    """Write the sections, the pairs of descriptions and the translations."""
    sections: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    pairs: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    labels: dict[str, str] = {}
    seen: set[str] = set()
    for md5, split, section, short, long in described_packages(apt):
        labels[md5], body = section, joined(long)
        sections[split].append({"text": f"{short}. {body}", "label": section})
        if body not in seen:  # a pair counts only if its long text is that of one package
            seen.add(body)
            pairs[split].append(pair(short, body))
    texts = apt.descriptions("en")
    for split in SPLITS:
        for folder, found in (("sections", sections), ("pairs/descriptions", pairs)):
            random.Random(0).shuffle(found[split])
            write_lines(output / folder / f"{split}.jsonl", found[split])
    for language in languages:
        found = [
            {"en": "\n".join(texts[md5]), language: "\n".join(text), "label": labels.get(md5, "")}
            for md5, text in sorted(apt.descriptions(language).items())
            if md5 in texts
        ]
        count = write_lines(output / "parallel" / f"{language}.jsonl", found)
        print(f"{language}: {count} translated descriptions", flush=True)


def definitions(output: Path, apt: Apt) -> None:
    """Write the pairs of terms and definitions of WordNet and GCIDE."""
    found: dict[str, list[tuple[str, str]]] = {"terms": [], "definitions": []}
    for terms, gloss in glosses(apt):
        found["terms"].append((name_of(terms), gloss))
    for word, entry in dictionary(apt, "dict-gcide", "gcide"):
        text = gcide_text(entry)
        if is_prose(text):
            found["definitions"].append((word, " ".join(text.split()[:200])))
    for name, pairs in found.items():
        texts = collections.Counter(text for _, text in pairs)
        by_split: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        for query, text in pairs:
            if texts[text] == 1:
                by_split[split_of(query)].append(pair(query, text))
        for split, lines in by_split.items():
            random.Random(0).shuffle(lines)
            write_lines(output / "pairs" / name / f"{split}.jsonl", lines)


def main() -> None:
    options = parse()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    apt = Apt(output / "apt", options.languages)
    names = make_sources(options, apt)
    if not names:
        sys.exit("no source could be made")
    sizes = merge(output, names)
    for made in (
        lambda: labelled(output, apt, options.languages),
        lambda: definitions(output, apt),
    ):
        try:
            made()
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            print(f"left out: {error}", flush=True)
    total = collections.Counter[str]()
    for name, counts in sizes.items():
        total.update(counts)
        print(
            f"{name:14s} {counts.get('documents', 0):8,d} {counts.get('bytes', 0) / 1e6:7.1f} MB "
            f"{counts.get('words', 0) / 1e6:6.2f} M words",
            flush=True,
        )
    sizes["all"] = dict(total)
    (output / "sizes.json").write_text(json.dumps(sizes, indent=1) + "\n")
    print(json.dumps(sizes["all"]), flush=True)


if __name__ == "__main__":
    main()
