import sys
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.tasks.names import find_task, task_names

MODULE = """
import os
from collections import OrderedDict
from functools import partial
from os.path import join

from t5x_lite.data.config import TaskArguments

class Row: ...
def sst2(arguments: "TaskArguments", *, seed: int = 0): return arguments
def untyped(arguments): return arguments
def unreadable(arguments: "NoSuchType"): return arguments
def clean(text: str): return text
def merge(one, other): return one
def read(file: str, *, columns): return file
def _hidden(arguments): ...
small = partial(sst2)
limit = 3
"""


@pytest.fixture
def my_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "my_tasks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "glue.py").write_text(MODULE)
    (package / "broken.py").write_text("import a_library_that_is_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("my_tasks")]:
        del sys.modules[name]


@pytest.mark.usefixtures("my_tasks")
def test_a_function_and_a_partial_are_found():
    assert find_task("my_tasks.glue:sst2")(7) == 7
    assert find_task("my_tasks.glue:small")(7) == 7
    assert task_names(sys.modules["my_tasks.glue"]) == [
        "sst2",
        "untyped",
        "unreadable",
        "small",
    ]


@pytest.mark.usefixtures("my_tasks")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_tasks.glue:sst", "module my_tasks.glue has no task 'sst'; did you mean sst2?"),
        (
            "my_tasks.glue:limit",
            "module my_tasks.glue has no task 'limit'; my_tasks.glue has sst2, untyped, "
            "unreadable, small",
        ),
        (
            "my_tasks.glue:Row",
            "my_tasks.glue:Row is a class, but must be a function; my_tasks.glue has sst2, ",
        ),
        (
            "my_tasks.glue:OrderedDict",
            "my_tasks.glue:OrderedDict is a class, but must be a function",
        ),
        (
            "my_tasks.glue:clean",
            "the function my_tasks.glue:clean must take one TaskArguments, but takes "
            "(text: str); my_tasks.glue has sst2, ",
        ),
        ("my_tasks.glue:merge", "but takes (one, other); my_tasks.glue has sst2, "),
        ("my_tasks.glue:read", "but takes (file: str, *, columns); my_tasks.glue has sst2, "),
        (
            "my_tasks.gleu:sst2",
            "module 'my_tasks.gleu' does not exist; did you mean my_tasks.glue?",
        ),
        ("my_task.glue:sst2", "module 'my_task.glue' does not exist"),
        ("sst2", "data.task must be module:function, such as tasks.glue:sst2, got 'sst2'"),
        (":sst2", "must be module:function"),
        ("my_tasks.glue:", "must be module:function"),
    ],
)
def test_unknown_names_are_refused_and_the_nearest_offered(name, message):
    with pytest.raises(InputError) as caught:
        find_task(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("my_tasks")
def test_what_a_module_fails_to_import_in_turn_is_not_hidden():
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_installed"):
        find_task("my_tasks.broken:sst2")
