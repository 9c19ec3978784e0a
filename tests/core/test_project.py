"""Which modules of a directory are found, by whom, and what is never shadowed."""

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite.config.file import read_config
from t5x_lite.core import project
from t5x_lite.core.errors import InputError
from t5x_lite.data.tasks.names import find_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    """An empty current directory; our own `tasks` and `configs` are forgotten for a while."""
    monkeypatch.chdir(tmp_path)
    path = [entry for entry in sys.path if entry and not Path(entry, "tasks").is_dir()]
    monkeypatch.setattr(sys, "path", path)
    modules = dict(sys.modules)
    for name in list(modules):
        if name.partition(".")[0] in ("tasks", "configs"):
            del sys.modules[name]
    project.open_again(project.Opened())
    yield
    sys.modules.clear()
    sys.modules.update(modules)


def write(path: str, text: str = "") -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_nothing_of_the_current_directory_is_found_before_a_config_is_read():
    write("evil.py")
    write("tasks/mine.py")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("evil")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tasks.mine")


def test_sys_path_stays_and_others_find_nothing():
    write("evil.py")
    write("tasks/__init__.py")
    before = list(sys.path)
    read_config(write("run.py", "experiment = 1"))
    assert sys.path == before
    for name in ("evil", "tasks"):  # this test is no code of the project
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_a_config_imports_its_neighbours_and_they_theirs():
    write("my_models/__init__.py", "from my_models.sizes import width")
    write("my_models/sizes.py", "from my_numbers import eight\nwidth = eight")
    write("my_numbers.py", "eight = 8")
    config = write("run.py", "from my_models import width\nexperiment = width")
    assert read_config(config) == 8


def test_a_module_is_imported_late_by_the_project_alone():
    write("my_tasks.py", "def stars(arguments):\n  import my_late\n  return my_late.x")
    write("my_late.py", "x = 3")
    read_config(write("run.py", "experiment = 1"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("my_late")
    assert find_task("my_tasks:stars")(None) == 3


def test_the_optional_import_of_a_library_does_not_reach_the_project(tmp_path):
    library = tmp_path / "site" / "a_library.py"
    library.parent.mkdir()
    library.write_text("try:\n  import evil\nexcept ImportError:\n  evil = None")
    sys.path.append(str(library.parent))
    write("evil.py", "raise SystemExit('evil ran')")
    config = write("run.py", "import a_library\nexperiment = a_library.evil")
    assert read_config(config) is None


@pytest.mark.parametrize("name", ["json", "colorsys", "yaml", "tyro"])
def test_no_standard_or_installed_module_is_shadowed(name):
    """By a module, by a package, or by a config that has its name."""
    sys.modules.pop(name, None)
    write(f"{name}.py", "experiment = 'evil'")
    read_config(write("run.py", f"import {name}\nexperiment = 1"))
    assert Path(sys.modules[name].__file__ or "").parent != Path.cwd()
    del sys.modules[name]
    assert read_config(f"{name}.py") == "evil"
    assert name not in sys.modules
    assert Path(project.import_module(name).__file__ or "").parent != Path.cwd()


def test_tasks_and_configs_of_the_project_win(tmp_path):
    for name in ("tasks", "configs"):
        write(f"site/{name}/__init__.py")
        write(f"site/{name}/theirs.py", "from_ = 'site'")
        write(f"here/{name}/__init__.py")
        write(f"here/{name}/mine.py", "from_ = 'here'")
    sys.path.append(str(tmp_path / "site"))
    config = "from configs.mine import from_\nexperiment = from_"
    assert read_config(write("here/run.py", config)) == "here"
    assert project.import_module("tasks.mine").from_ == "here"
    with pytest.raises(ModuleNotFoundError):
        project.import_module("tasks.theirs")


def test_folders_without_init_share_a_name_and_those_without_code_do_not_count(tmp_path):
    write("site/tasks/__init__.py")
    write("site/tasks/theirs.py", "from_ = 'site'")
    sys.path.append(str(tmp_path / "site"))
    write("here/tasks/mine.py", "from_ = 'here'")
    project.open_at("here")
    assert project.import_module("tasks.mine").from_ == "here"
    assert project.import_module("tasks.theirs").from_ == "site"
    for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
        del sys.modules[name]
    project.open_again(project.Opened())
    write("data/tasks/train.jsonl")
    project.open_at("data")
    assert project.import_module("tasks.theirs").from_ == "site"


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """The package as a wheel installs it, with tasks and configs inside."""
    package = tmp_path / "site" / "t5x_lite"
    monkeypatch.setattr(project, "_HERE", package)
    write("site/t5x_lite/_shipped/tasks/__init__.py")
    write("site/t5x_lite/_shipped/tasks/glue.py", "from_ = 'shipped'")
    write("site/t5x_lite/_shipped/configs/size.py", "size = 7")
    write("site/t5x_lite/_shipped/configs/tiny.py", "from configs.size import size as experiment")
    return package


def test_a_wheel_ships_tasks_and_configs(wheel):
    assert project.import_module("tasks.glue").from_ == "shipped"
    assert read_config("configs/tiny.py") == 7
    with pytest.raises(
        InputError, match=r"configs/tinny\.py does not exist; did you mean configs/t"
    ):
        read_config("configs/tinny.py")


@pytest.mark.parametrize("package", [True, False])
def test_ones_own_modules_win_over_the_shipped_and_stand_beside_them(wheel, package):
    if package:
        write("here/tasks/__init__.py")
    write("here/tasks/mine.py", "from_ = 'here'")
    write("here/configs/size.py", "size = 8")
    project.open_at("here")
    assert project.import_module("tasks.mine").from_ == "here"
    assert project.import_module("tasks.glue").from_ == "shipped"
    assert read_config("configs/tiny.py") == 8
    assert read_config(write("configs/tiny.py", "experiment = 9")) == 9


def test_the_tasks_of_another_installed_package_do_not_hide_the_shipped(wheel, tmp_path):
    write("other/tasks/__init__.py")
    sys.path.append(str(tmp_path / "other"))
    assert project.import_module("tasks.glue").from_ == "shipped"


@pytest.mark.parametrize("mark", ["pyproject.toml", ".git/HEAD", "tasks/x.py"])
def test_root_above(mark):
    write("a/pyproject.toml")
    write(f"a/b/{mark}")
    assert project.root_above(Path("a/b/configs/run.py")) == Path.cwd() / "a" / "b"
    assert project.root_above(Path("a/configs/run.py")) == Path.cwd() / "a"


def test_what_is_open_goes_to_another_process():
    write("my_tasks.py", "def stars(arguments): return 5")
    read_config(write("run.py", "experiment = 1"))
    find_task("my_tasks:stars")
    program = (
        "import pickle, sys\n"
        "from t5x_lite.core import project\n"
        "project.open_again(pickle.loads(sys.stdin.buffer.read()))\n"
        "from t5x_lite.data.tasks.names import find_task\n"
        "print(find_task('my_tasks:stars')(None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        input=pickle.dumps(project.opened()),
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (0, b"5\n"), done.stderr.decode()


def test_checkpoints_are_trusted_within_the_block_alone():
    write("my_models.py", "x = 1")
    before, finders = project.opened(), list(sys.meta_path)
    with project.trusting_checkpoints(False):
        assert not project.trusts("my_models")
        assert project.trusts("t5x_lite.models.t5")
        assert not project.trusts("t5x_lite_of_somebody")
    with project.trusting_checkpoints(True):
        assert project.trusts("my_models")
        assert project.import_module("my_models").x == 1
    assert (project.opened(), sys.meta_path) == (before, finders)
    assert not project.trusts("my_models")


def test_python_m_drops_the_current_directory():
    for name in ("typing", "numpy", "tyro", "dataclasses", "evil"):
        write(f"{name}.py", "raise SystemExit('evil ran')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (["-m", "t5x_lite"], ["-mt5x_lite"], ["-Bm", "t5x_lite"], ["-m", "t5x_lite.cli"]):
        done = subprocess.run(
            [sys.executable, *words, "--version"], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), words
    Path("typing.py").unlink()
    write("mine/__init__.py", "import t5x_lite")  # somebody else's program
    write("mine/__main__.py", "import sys\nprint(sys.path[0])")
    done = subprocess.run(
        [sys.executable, "-m", "mine", "t5x_lite"], env=environment, capture_output=True, text=True
    )
    assert done.stdout == f"{Path.cwd()}\n"


def test_python_m_works_in_a_checkout_that_is_not_installed():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "t5x_lite", "--version"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
