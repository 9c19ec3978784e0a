"""The one command that installs an extra, in a checkout and of a wheel."""

import re
from pathlib import Path

from t5x_lite.core.errors import install_command

ROOT = Path(__file__).resolve().parents[2]


def test_in_a_checkout_it_is_the_command_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install_command("c4") == 'pip install -e ".[c4]" -c constraints.txt'
    extras = ("data", "hub", "tables", "metrics")
    assert install_command(*extras) in (ROOT / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    assert install_command("data", "beam") == (
        f'pip install -e "{ROOT}[data,beam]" -c {ROOT}/constraints.txt'
    )


def test_of_a_wheel_it_names_what_is_installed(tmp_path):
    assert install_command("c4", root=tmp_path) == 'pip install "t5x-lite[c4]"'


def test_no_other_module_spells_it():
    spelt = [
        file.name
        for file in (ROOT / "t5x_lite").rglob("*.py")
        if re.search(r"pip install .*\[", file.read_text())
    ]
    assert spelt == ["errors.py"]
