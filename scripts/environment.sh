# Sourced by the other scripts: makes a virtual environment and installs the project into it.
#
#   make_environment VENV EXTRAS     e.g. make_environment .venv data,metrics
#
# Modules are compiled when they are first imported: compiling all of them takes longer than the rest.
# What was compiled must be kept for that, also where the machine's settings say otherwise.
# With T5X_LITE_LOCKED=1 every file that is installed must have its SHA-256 in scripts/locks, which
# scripts/lock.sh writes; it has the extras of quickstart.sh and of test.sh.
# A second call with unchanged pyproject.toml and constraints.txt does nothing. PYTHON=/path/to/python
# chooses the interpreter.

unset PYTHONDONTWRITEBYTECODE

# Prints the first interpreter that runs and can make a virtual environment. What is only found on
# the PATH may still fail to run (a pyenv shim), so each candidate is tried.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3 python; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
      >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  echo "error: no Python 3.11 or 3.12 with the venv module found; install one (on Debian:" \
    "python3 and python3-venv) or set PYTHON to its path" >&2
  return 1
}

make_environment() {
  local venv=$1 extras=$2 lock="" python stamp fingerprint
  stamp="$venv/installed.$extras"
  if [[ ${T5X_LITE_LOCKED:-0} == 1 ]]; then
    case $extras in
      data) lock=scripts/locks/data.txt ;;
      data,beam,c4,metrics,serve,docs,tables,dev) lock=scripts/locks/test.txt ;;
      *) echo "error: T5X_LITE_LOCKED=1: no lock has the extras $extras" >&2 && return 1 ;;
    esac
  fi
  fingerprint="$PWD $(cat pyproject.toml constraints.txt $lock | cksum)"
  if [[ -x "$venv/bin/python" && -f "$stamp" && "$(cat "$stamp")" == "$fingerprint" ]]; then
    return 0
  fi
  if [[ ! -x "$venv/bin/python" ]] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "== making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
  fi
  echo "== installing t5x-lite[$extras] into $venv (3 to 4 GB; some minutes the first time)"
  # What pip downloads and builds is on the environment's disk, too: /tmp may be a small one.
  mkdir -p "$venv/tmp"
  if [[ -n $lock ]]; then
    pip_install "$venv" --require-hashes -r "$lock"
    pip_install "$venv" --no-deps --no-build-isolation -e .
  else
    pip_install "$venv" -e ".[$extras]" -c constraints.txt
  fi
  rm -rf "$venv/tmp"
  printf '%s\n' "$fingerprint" >"$stamp"
}

# pip_install VENV ARGUMENT...: says of a full disk where it is, and how much is left.
pip_install() {
  local venv=$1 status=0
  shift
  TMPDIR="$(cd "$venv" && pwd)/tmp" "$venv/bin/python" -m pip install --disable-pip-version-check \
    --no-compile -qq "$@" || status=$?
  if [[ $status != 0 ]]; then
    echo "error: pip failed; the disk of $venv has $(df -Pk "$venv" | awk 'NR == 2 { print int($4 / 1024) }')" \
      "MiB left, and an environment needs 3 to 6 GB; T5X_LITE_VENV=PATH puts it elsewhere" >&2
  fi
  return $status
}

# test_processes: how many processes share the tests. Most of a test is one thread of the compiler, or
# the import of TensorFlow. A process comes to 6 GiB of compiled programs; where the memory is not told, 2.
test_processes() {
  local cores by_memory
  cores=$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
  by_memory=$(awk '/^MemTotal:/ { print int($2 / 7e6) }' /proc/meminfo 2> /dev/null || echo 2)
  echo $((cores <= 2 || by_memory <= 2 ? 2 : cores < by_memory ? cores : by_memory))
}
