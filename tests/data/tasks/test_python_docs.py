"""The embedded corpus, on small trees of fake packages."""

import collections
import subprocess
import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.tasks import python_docs
from t5x_lite.data.tasks.python_docs import (
    Document,
    clean_text,
    collect_documents,
    documents,
    installed_roots,
    labelled,
    main,
)

ALPHA = '''"""Alpha is a package about the first things."""

class Box:
    """A box holds\n    several things,\n\n    and closes."""

    def open(self):
        """Open the box and take everything out."""

        def inner():
            """This one is nested inside of a method."""

if True:
    async def fetch():
        """Fetch is defined under a condition here."""
else:
    def fetch():
        """Fetch has another definition over here."""

value = """A plain string is not a docstring at all."""
'''


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def texts(roots, **limits):
    return [document.text for document in collect_documents(roots, **limits)]


def test_docstrings_in_the_order_of_the_source(tmp_path):
    write(tmp_path, {"alpha/__init__.py": ALPHA})
    assert [(d.module, d.name, d.text) for d in collect_documents([tmp_path])] == [
        ("alpha", "", "Alpha is a package about the first things."),
        ("alpha", "Box", "A box holds several things, and closes."),
        ("alpha", "Box.open", "Open the box and take everything out."),
        ("alpha", "Box.open.inner", "This one is nested inside of a method."),
        ("alpha", "fetch", "Fetch is defined under a condition here."),
        ("alpha", "fetch", "Fetch has another definition over here."),
    ]


def test_topics_come_first_then_roots_in_order_and_names_sorted(tmp_path):
    one = write(
        tmp_path / "one",
        {
            "zeta.py": '"""Zeta is a single module of the first root."""',
            "beta/sub/deep.py": '"""Deep is a module of a package without init."""',
            "pydoc_data/topics.py": "topics = {'while': 'The while statement repeats a suite.', "
            "'assert': 'The assert statement checks a condition.'}",
        },
    )
    two = write(tmp_path / "two", {"alpha.py": '"""Alpha is a module of the second root."""'})
    found = collect_documents([one, two, tmp_path / "missing"])
    assert [(d.module, d.name) for d in found] == [
        ("pydoc_data", "assert"),
        ("pydoc_data", "while"),
        ("beta.sub.deep", ""),
        ("zeta", ""),
        ("alpha", ""),
    ]
    assert found == collect_documents([one, two, tmp_path / "missing"])


def test_tests_vendored_copies_and_this_package_are_skipped(tmp_path):
    docstring = '"""This text must not be in the corpus: {}."""'
    names = [
        "alpha/tests/first.py",
        "alpha/test/second.py",
        "alpha/_vendor/third.py",
        "alpha/test_fourth.py",
        "alpha/fifth_test.py",
        "t5x_lite/sixth.py",
        "site-packages/seventh.py",
        "numpy.libs/eighth.py",
        "idlelib/idle_test/ninth.py",
    ]
    write(tmp_path, {name: docstring.format(name) for name in names})
    write(tmp_path, {"alpha/testing.py": '"""Only this module belongs to the corpus."""'})
    assert texts([tmp_path]) == ["Only this module belongs to the corpus."]


@pytest.mark.filterwarnings("error")
def test_foreign_sources_may_be_broken(tmp_path):
    write(
        tmp_path,
        {
            "a.py": '"""This file has a syntax error in it."""\ndef (:',
            "b.py": b'"""This file is not in UTF-8: caf\xe9, sadly."""',
            "c.py": b'"""This file has a null byte somewhere."""\0',
            "d.py": '"""This one has an invalid \\d escape only."""',
            "e.py": '# coding: latin-1\n"""This one says how it is encoded: café."""'.encode(
                "latin-1"
            ),
            "f.py": '"""This is too deep for the parser."""\n' + "(" * 5000 + ")" * 5000,
            "g.py": '"""This one has lone \\ud800 surrogates inside."""',
        },
    )
    assert texts([tmp_path]) == [
        "This one has an invalid \\d escape only.",
        "This one says how it is encoded: café.",
    ]


def test_exact_repeats_are_dropped(tmp_path):
    same = '"""The same words stand in two modules."""'
    write(tmp_path, {"a.py": same, "b.py": same})
    assert [d.module for d in collect_documents([tmp_path])] == ["a"]


def test_limits(tmp_path):
    write(
        tmp_path,
        {
            "a/one.py": '"""Forty characters of text, more or less."""',
            "a/two.py": '"""Forty characters of text, more and more."""',
            "b.py": '"""Forty characters of text, at the end..."""',
        },
    )
    assert len("Forty characters of text, more or less.\n") == 40
    assert len(texts([tmp_path])) == 3
    assert [d.module for d in collect_documents([tmp_path], max_package_bytes=60)] == ["a.one", "b"]
    assert [d.module for d in collect_documents([tmp_path], max_bytes=81)] == ["a.one", "a.two"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Too short to be kept.", None),
        ("Heading\n=======\n\n  Words\tbelow the  heading.\n", "Heading Words below the heading."),
        ("0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07", None),
        ("A control character \x00 is in this sentence.", None),
        ("Éénvoudige tekst met accenten blijft staan.",) * 2,
    ],
)
def test_clean_text(text, expected):
    assert clean_text(text) == expected


def corpus():
    documents = []
    for module, topic, count in [("red.a", "rose", 9), ("blue.b", "sky", 6), ("gray", "fog", 1)]:
        for i in range(count):
            text = f"The Red and red.blue thing about {topic} number {i} in some redder words."
            documents.append(Document(module=module, name=str(i), text=text))
    return documents


def test_labelled_masks_the_names_of_all_labels_and_balances():
    examples = labelled(corpus(), num_labels=2, min_chars=20)
    assert collections.Counter(label for _, label in examples) == {"red": 9, "blue": 6}
    assert ("The and thing about sky number 0 in some redder words.", "blue") in examples
    assert ("The and thing about rose number 8 in some redder words.", "red") in examples
    counts = collections.Counter(
        label for _, label in labelled(corpus(), num_labels=3, min_chars=20)
    )
    assert counts == {"red": 1, "blue": 1, "gray": 1}


def test_labelled_limits():
    examples = labelled(corpus(), num_labels=2, max_per_label=4, min_chars=10, max_chars=24)
    assert {text for text, _ in examples} == {"The and thing about rose", "The and thing about sky"}
    examples = labelled(corpus(), num_labels=2, max_per_label=4, min_chars=20)
    assert collections.Counter(label for _, label in examples) == {"red": 4, "blue": 4}
    assert labelled([]) == []
    assert labelled(corpus(), min_chars=500) == []


def test_labelled_does_not_depend_on_the_order_of_the_corpus():
    assert labelled(corpus(), min_chars=20) == labelled(corpus()[::-1], min_chars=20)


def test_every_prefix_of_labelled_is_a_fair_sample():
    documents = [
        Document(module=module, name=str(i), text=f"Text of {module[::-1]} that has number {i}.")
        for module, count in [("large", 900), ("small", 200)]
        for i in range(count)
    ]
    examples = labelled(documents, num_labels=2, min_chars=10)
    assert len(examples) == 500
    half = collections.Counter(label for _, label in examples[:250])
    assert 130 < half["large"] < 170


def test_the_installed_corpus_is_found_without_importing_it():
    assert (installed_roots()[0] / "email").is_dir()
    code = (
        "import sys, itertools\n"
        "from t5x_lite.data.tasks import python_docs\n"
        "roots = python_docs.installed_roots()[:1]\n"
        "found = python_docs.collect_documents(roots, max_bytes=400_000)\n"
        "print(found[0].module, len(found) > 100, 'email' in sys.modules, 'jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "pydoc_data True False False\n"), done.stderr


def test_what_is_written_is_what_is_read(tmp_path, monkeypatch):
    corpus = [
        Document(module="m.n", name="Class.method", text="Zwölf Boxkämpfer jagen Viktor."),
        Document(module="m", name="", text="A second text, of the module itself."),
    ]
    monkeypatch.setattr(python_docs, "_installed_documents", lambda: tuple(corpus))
    assert main([str(tmp_path / "corpus")]) == 0
    assert documents(tmp_path / "corpus") == corpus
    assert (tmp_path / "corpus" / "documents.txt").read_text(encoding="utf-8") == (
        "Zwölf Boxkämpfer jagen Viktor.\nA second text, of the module itself.\n"
    )


def test_a_directory_without_the_corpus_is_named(tmp_path):
    with pytest.raises(InputError, match=r"documents\.jsonl: cannot be read"):
        documents(tmp_path)


def test_wrong_arguments_print_the_usage(capsys):
    assert main([]) == 2
    assert "usage: python -m t5x_lite.data.tasks.python_docs DIRECTORY" in capsys.readouterr().err
