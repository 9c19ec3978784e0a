#!/usr/bin/env bash
# What launch.sh runs on each worker, in its home directory. By hand, on one machine:
#
#   bash t5x_lite/scripts/tpu/worker.sh setup EXTRAS        # PYTHON=/path/to/python3.12 chooses
#   bash t5x_lite/scripts/tpu/worker.sh train RESTARTS CONFIG [--FIELD VALUE ...]
#   bash t5x_lite/scripts/tpu/worker.sh run RESTARTS COMMAND [ARGUMENT ...]     # any of t5x-lite
#   bash t5x_lite/scripts/tpu/worker.sh status | stop
#
# A run that ends with code 1 (it failed, or lost another host) or 143 (SIGTERM, or Google Cloud's
# notice of preemption), or that is killed by a signal such as JAX's SIGABRT, is started again up to
# RESTARTS times, and resumes. Codes 0 (done), 2 (wrong usage or bad input) and 130 (Ctrl-C) end it.
# So does `stop`, after the run has saved.
#
# Each worker decides by itself, and all come to the same end: all processes agree on a stop by a
# signal, and when one fails the others lose it. They notice that after --hosts.heartbeat seconds
# (100) at most. A worker therefore waits for RESTART_WAIT seconds (120), so that no process meets
# one of the attempt before; and `stop` reaches the last worker within that time, too.
set -euo pipefail

home=$PWD
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/worker.sh
venv=$home/t5x_lite-venv
log=$home/t5x_lite.log # a link to that of the last command
pid_file=$home/t5x_lite-train.pid
code_file=$home/t5x_lite-train.code

fail() {
  echo "error: $(hostname): $*" >&2
  exit 1
}

# After a reboot the number in the file may be that of another process.
running() {
  local pid
  pid=$(cat "$pid_file" 2> /dev/null) && grep -qs worker.sh "/proc/$pid/cmdline"
}

suits() {
  "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
    > /dev/null 2>&1
}

# Makes the virtual environment. Google's TPU images are Ubuntu 22.04, whose Python is 3.10: there
# uv puts Python 3.12 into the home directory.
make_venv() {
  local python
  if [[ -n "${PYTHON:-}" ]]; then
    suits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or 3.12 with the venv module"
    "$PYTHON" -m venv "$venv"
    return
  fi
  if [[ -x "$venv/bin/pip" ]] && suits "$venv/bin/python"; then
    return
  fi
  rm -rf "$venv"
  for python in python3.12 python3.11 python3; do
    if suits "$python"; then
      "$python" -m venv "$venv"
      return
    fi
  done
  if ! make_venv_by_uv > t5x_lite-setup.log 2>&1; then
    fail "no Python 3.11 or 3.12 here, and uv could not get one" \
      "($(grep -m 1 '^error' t5x_lite-setup.log || tail -n 1 t5x_lite-setup.log);" \
      "more in ~/t5x_lite-setup.log): install one on every worker and set PYTHON= to its path"
  fi
}

make_venv_by_uv() {
  rm -rf t5x_lite-uv
  python3 -m pip install --quiet --disable-pip-version-check --target t5x_lite-uv uv &&
    t5x_lite-uv/bin/uv venv --quiet --seed --python 3.12 "$venv"
}

# EXTRAS; the new checkout is in t5x_lite.new.
setup() {
  ! running || fail 'a run goes on: stop it first'
  if [[ -d t5x_lite.new ]]; then
    rm -rf t5x_lite
    mv t5x_lite.new t5x_lite
  fi
  make_venv
  cd t5x_lite
  "$venv/bin/pip" install --quiet --disable-pip-version-check -e ".[$1,zst]" gcsfs -c constraints.txt
}

# RESTARTS ARGUMENTS...
train() {
  start t5x_lite-train.log "$1" train "${@:2}"
}

# RESTARTS COMMAND ARGUMENTS...
run() {
  start t5x_lite-run.log "$@"
}

# LOG RESTARTS COMMAND ARGUMENTS...
start() {
  if running; then
    echo 'a run goes on already: stop it first' >&2
    exit 1
  fi
  rm -f "$code_file" "$log"
  ln -s "$1" "$log"
  nohup bash "$self" attempts "${@:2}" > "$home/$1" 2>&1 < /dev/null &
  echo $! > "$pid_file"
}

# RESTARTS COMMAND ARGUMENTS...: the process whose number is in the file.
attempts() {
  local restarts=$1 number=1 pause=${RESTART_WAIT:-120} ended
  shift
  child='' code=0 stopped='' interrupted=''
  trap 'stopped=1 interrupted=1; [[ -z "$child" ]] || kill -TERM "$child" 2> /dev/null || true' TERM
  cd t5x_lite
  while true; do
    follow "$venv/bin/t5x-lite" "$@"
    ended=$code
    if [[ -n "$stopped" ]] || ((number > restarts)) || ! is_failure "$ended"; then break; fi
    echo "ended with code $ended: restart $number of $restarts in $pause seconds"
    follow sleep "$pause"
    if [[ -n "$stopped" ]]; then break; fi
    number=$((number + 1))
  done
  echo "$ended" > "$code_file"
  exit "$ended"
}

is_failure() {
  (($1 == 1 || ($1 > 128 && $1 != 130)))
}

# Runs a command to its end, whatever signals come until then; its exit code goes to $code.
follow() {
  "$@" &
  child=$!
  [[ -z "$stopped" ]] || kill -TERM "$child" 2> /dev/null || true
  interrupted=1
  while [[ -n "$interrupted" ]]; do
    interrupted='' code=0
    wait "$child" || code=$?
  done
  child=''
}

status() {
  hostname
  if running; then
    echo 'a run goes on'
  elif [[ -f "$code_file" ]]; then
    echo "no run; the last one ended with code $(cat "$code_file")"
  else
    echo 'no run'
  fi
  if [[ -f "$log" ]]; then tail -n 2 "$log"; fi
}

stop() {
  if running; then kill -TERM "$(cat "$pid_file")"; fi
}

case "${1:-}" in
  setup | train | run | attempts | status | stop) "$@" ;;
  *)
    echo 'error: worker.sh setup, train, run, status or stop' >&2
    exit 2
    ;;
esac
