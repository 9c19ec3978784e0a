"""Config files: what they may import, and one line with file and line for what is wrong in them."""

import sys
from pathlib import Path

import pytest

from t5x_lite.config.file import read_config
from t5x_lite.core import project
from t5x_lite.core.errors import InputError


@pytest.fixture(autouse=True)
def _own_import_state(monkeypatch, tmp_path):
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    project.open_again(project.Opened())
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def error(path: Path | str) -> str:
    with pytest.raises(InputError) as raised:
        read_config(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_config_imports_from_its_project_and_from_the_current_directory():
    write("project/tasks/glue.py", "")
    write("project/parts_of_project/prose.py", "name = 'prose'")
    write("here.py", "seed = 5")
    config = "import here\nfrom parts_of_project import prose\nexperiment = (prose.name, here.seed)"
    assert read_config(write("project/configs/deep/run.py", config)) == ("prose", 5)
    places = (".", "project", "project/configs/deep")
    assert project.opened().directories == tuple(str(Path(place).resolve()) for place in places)


@pytest.mark.parametrize("marker", ["pyproject.toml", ".git/HEAD", "tasks/x.py"])
def test_the_project_root_is_the_nearest_marked_parent(marker):
    write(f"a/b/{marker}", "")
    write("a/pyproject.toml", "")
    read_config(write("a/b/configs/run.py", "experiment = 1"))
    assert project.opened().directories[1] == str(Path("a/b").resolve())


def test_a_config_without_a_project_imports_from_its_own_directory():
    write("lonely/sizes_of_lonely.py", "d_model = 8")
    config = "from sizes_of_lonely import d_model\nexperiment = d_model"
    assert read_config(write("lonely/run.py", config)) == 8


def test_a_class_of_the_config_can_be_imported_again():
    write("project/pyproject.toml", "")
    file = write("project/configs_x/run.py", "class A: pass\nexperiment = A()")
    cls = type(read_config(file))
    assert cls.__module__ == "project.configs_x.run"
    assert sys.modules["project.configs_x.run"].A is cls


def test_a_config_does_not_replace_another_module():
    before = sys.modules["json"]
    assert read_config(write("json.py", "experiment = 1")) == 1
    assert sys.modules["json"] is before


def test_a_config_is_read_anew_each_time():
    file = write("run_anew.py", "experiment = 1")
    assert read_config(file) == 1
    file.write_text("experiment = 22")
    assert read_config(file) == 22


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nexperiment = (", "run.py:2: '(' was never closed"),
        ("experimant = 1", "run.py defines no `experiment`; did you mean experimant?"),
        ("", "run.py defines no `experiment`"),
        ("\n\n1 / 0", "run.py:3: ZeroDivisionError: division by zero"),
        ("import no_such_module", "run.py:1: ModuleNotFoundError: No module named"),
        ("open('no_such_file')", "run.py:1: FileNotFoundError: "),
        (
            "from t5x_lite.core.errors import InputError\n"
            "raise InputError('sizes must be positive')",
            "run.py:2: sizes must be positive",
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Sizes_:\n  d_model: int\n"
            "  d_ff: int\nexperiment = Sizes_(d_modle=1)",
            "run.py:6: Sizes_ has no field d_modle; did you mean d_model?",
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Sizes_:\n  d_model: int\n"
            "  d_ff: int\nexperiment = Sizes_(zzz=1)",
            "run.py:6: Sizes_ has no field zzz; it has d_model, d_ff",
        ),
    ],
)
def test_what_is_wrong_names_file_and_line(text, message):
    assert error(write("run.py", text)).startswith(message)


def test_an_error_in_an_imported_module_names_the_line_of_the_config():
    write("broken_part.py", "\nx = [0][1]")
    assert error(write("run.py", "\nimport broken_part")) == (
        "run.py:2: IndexError: list index out of range"
    )


def test_bytes_that_are_no_text():
    Path("run.py").write_bytes(b"experiment = '\xff'")
    assert error("run.py").startswith("run.py:")
    Path("run.json").write_bytes(b"\xff")
    assert error("run.json").startswith("run.json cannot be read: ")
    Path("run.json").write_text("[")
    assert error("run.json").startswith("run.json:1: not JSON: ")


def test_a_path_that_is_no_config():
    write("configs/tiny_pretrain.py", "experiment = 1")
    assert error("configs/tiny_pretain.py") == (
        "configs/tiny_pretain.py does not exist; did you mean configs/tiny_pretrain.py?"
    )
    assert error("nothing/x.py") == "nothing/x.py does not exist; docs/recipes.md lists the configs"
    is_directory = "configs is a directory; give a config"
    assert error("configs") == f"{is_directory}, such as configs/tiny_pretrain.py"
    Path("configs/tiny_pretrain.py").unlink()
    assert error("configs") == f"{is_directory}, a .py file or a saved config.json"
    write("configs/config.json", "{}")
    assert error("configs") == f"{is_directory}, such as configs/config.json"
    write("run.yaml", "steps: 1")
    assert error("run.yaml") == (
        "run.yaml is not a config: expected a .py file or a saved config.json"
    )
