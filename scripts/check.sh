#!/usr/bin/env bash
# The gate: format, lint, types, layers, fast tests. Arguments go to pytest.
#
#   scripts/check.sh [tests/nn ...]
#
# Uses the environment that scripts/test.sh made ($T5X_LITE_VENV or .venv-test), else the PATH's tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

venv=${T5X_LITE_VENV:-.venv-test}
if [[ -x "$venv/bin/python" ]]; then
  PATH="$(cd "$venv/bin" && pwd):$PATH"
  export PATH
fi

step() {
  echo "== $*"
  "$@"
}

step ruff format --check .
step ruff check .
# The packages are those of this environment, whatever a .venv beside it has.
step basedpyright --pythonpath "$(command -v python)"
step lint-imports --no-logo
step python -m pytest -q -n "$(test_processes)" --dist loadfile -m "not slow and not oracle and not exhaustive" --durations=10 "$@"
