#!/usr/bin/env bash
# Builds the documentation site and runs the notebooks and the commands of the tutorials.
#
#   scripts/docs.sh            the site in work/site, then the tests of docs/
#   scripts/docs.sh --build    the site alone
#
# Uses the environment that scripts/test.sh made ($T5X_LITE_VENV or .venv-test), else the PATH's tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${T5X_LITE_VENV:-.venv-test}
if [[ -x "$venv/bin/python" ]]; then
  PATH="$(cd "$venv/bin" && pwd):$PATH"
  export PATH
fi
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

site=work/site # git ignores it
python -m mkdocs build --strict --clean --config-file scripts/docs/mkdocs.yml --site-dir "$PWD/$site"
if [[ ${1:-} != --build ]]; then
  if python -c 'import pytest' 2>/dev/null; then
    python -m pytest -q tests/docs
  else
    echo "the site is in $site; the tests of docs/ need the extra dev: pip install -e '.[dev,data]'"
  fi
fi
