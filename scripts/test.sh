#!/usr/bin/env bash
# From a plain machine with Python 3.11 or newer to a checked and tested project: makes the
# environment ($T5X_LITE_VENV, else .venv-test), then runs scripts/check.sh. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

export T5X_LITE_VENV=${T5X_LITE_VENV:-.venv-test}
make_environment "$T5X_LITE_VENV" data,beam,c4,metrics,serve,docs,tables,dev
exec scripts/check.sh "$@"
