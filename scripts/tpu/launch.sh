#!/usr/bin/env bash
# Runs one command on all workers of Cloud TPU slices, from a machine that has gcloud.
#
#   export TPU=NAME ZONE=us-west4-a         # an existing slice, or:
#   export QR=NAME ZONE=us-west4-a          # a queued resource, of one slice or several
#   ACCELERATOR=v5litepod-16 SLICES=2 scripts/tpu/launch.sh create [--spot ...]     # with QR only
#   scripts/tpu/launch.sh describe          # with QR only: its state; wait until it is ACTIVE
#   scripts/tpu/launch.sh setup
#   scripts/tpu/launch.sh train [--restarts 20] configs/pretrain/t5_1_1_base.py \
#       --data.cache gs://BUCKET/c4 --data.vocabulary gs://BUCKET/spiece.model \
#       --workdir gs://BUCKET/t5_1_1_base [--mesh.replica 2]
#   scripts/tpu/launch.sh run [--restarts 20] evaluate CONFIG --checkpoint gs://BUCKET/t5_1_1_base ...
#   scripts/tpu/launch.sh logs | status | stop
#   scripts/tpu/launch.sh copy FILE... :DIRECTORY       # to all workers; copy :FILE... HERE from one
#   ACCELERATOR=v5litepod-16 scripts/tpu/launch.sh restart [--spot ...] train CONFIG ...     # with QR only
#   scripts/tpu/launch.sh delete [--force]  # the slices and the queued resource; ends the cost
#
# setup copies the last commit to ~/t5x_lite of every worker and installs it there, with the extra
# `tpu` and what reads gs:// (EXTRAS=tpu,data adds seqio and TensorFlow). If the workers' Python is
# older than 3.11, uv installs 3.12; PYTHON=PATH names another one, 3.11 or 3.12. create takes
# RUNTIME=VERSION, the image's software version, and gcloud's options.
#
# run starts any command of t5x-lite, and `train ...` is short for `run train ...`. The command
# continues after gcloud has left: its output is in ~/t5x_lite.log of each worker, and status prints
# its exit code. One command runs at a time. The same train command resumes. --restarts N starts a
# command that failed or was preempted again, at most N times, after RESTART_WAIT seconds (120);
# worker.sh has the rules. Words NAME=VALUE in front of the command are environment variables.
# stop makes the run save and end. logs, and copy from a worker, use WORKER=0 and NODE=0, the first
# host of the first slice; with WORKER=N, run uses that host alone.
#
# A spot slice that was taken away is SUSPENDED. restart deletes the queued resource and creates it
# again if it is SUSPENDED or FAILED (or creates it if there is none), waits until it is ACTIVE
# (asking every POLL=60 seconds), sets it up and starts the command, which resumes.
#
# PROJECT=ID names the project; SSH_OPTIONS="--internal-ip" is passed to gcloud's ssh and scp;
# DRY_RUN=1 prints the commands instead of running them.
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
}

fail() {
  echo "error: $*" >&2
  exit 2
}

case "${1:-}" in
  '') usage >&2 && exit 2 ;;
  -h | --help | help) usage && exit ;;
esac
name=${QR:-${TPU:-}}
[[ -n "$name" ]] || fail "no slice is named; set TPU to the name of the slice, or QR to that of the queued resource"
[[ -n "${ZONE:-}" ]] || fail "no zone is named; set ZONE to the zone of the slice, such as us-west4-a"
where=("--zone=$ZONE")
[[ -z "${PROJECT:-}" ]] || where+=("--project=$PROJECT")
if [[ -n "${QR:-}" ]]; then
  kind=queued-resources everywhere=(--node=all --worker=all)
  first=("--node=${NODE:-0}" "--worker=${WORKER:-0}")
else
  kind=tpu-vm everywhere=(--worker=all)
  first=("--worker=${WORKER:-0}")
fi
read -r -a ssh_options <<< "${SSH_OPTIONS:-}"

gcloud_tpu() {
  local words=(gcloud compute tpus "$kind" "$@")
  if [[ -n "${DRY_RUN:-}" ]]; then
    printf '%q ' "${words[@]}"
    echo
  else
    "${words[@]}"
  fi
}

# TARGET... -- COMMAND: runs a command on workers.
on() {
  local target=()
  while [[ "$1" != -- ]]; do target+=("$1") && shift; done
  gcloud_tpu ssh "$name" "${where[@]}" "${target[@]}" ${ssh_options[@]+"${ssh_options[@]}"} --command="$2"
}

on_all() {
  on "${everywhere[@]}" -- "$1"
}

# Cloud TPU documentation, "TPU software versions": those for JAX.
runtime() {
  case "$ACCELERATOR" in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

queued() {
  [[ -n "${QR:-}" ]] || fail "$command works on queued resources; set QR to the name of one"
}

accelerated() {
  [[ -n "${ACCELERATOR:-}" ]] ||
    fail "$command needs a type of slice; set ACCELERATOR to the type of a slice, such as v5litepod-16"
  [[ "$ACCELERATOR" != *:* ]] ||
    fail "ACCELERATOR is $ACCELERATOR, a name of t5x-lite plan; set it to gcloud's type of the slice, such as v5litepod-16"
  [[ ! "$ACCELERATOR" =~ ^(v5litepod|v6e)- || "$ACCELERATOR" =~ -(1|4|8|16|32|64|128|256)$ ]] ||
    fail "no slice $ACCELERATOR; the sizes of ${ACCELERATOR%%-*} are 1, 4, 8, 16, 32, 64, 128 and 256"
  [[ "${SLICES:-1}" =~ ^[1-9][0-9]*$ ]] ||
    fail "SLICES is $SLICES; set it to the number of slices, such as 2"
}

# Ends if a command that takes no arguments has some.
alone() {
  [[ $# == 0 ]] || fail "$command takes no arguments, got $*; see launch.sh --help"
}

describe() {
  local format='value(state)'
  [[ -z "${QR:-}" ]] || format='value(state.state)'
  gcloud_tpu describe "$name" "${where[@]}" --format="$format"
}

# Sets $state to the state of the slice; NONE if there is no such slice.
find_state() {
  local errors code=0
  command -v gcloud > /dev/null ||
    fail "gcloud is not installed; see https://cloud.google.com/sdk/docs/install"
  errors=$(mktemp)
  state=$(describe 2> "$errors") || code=$?
  local said line
  said=$(< "$errors")
  rm -f "$errors"
  [[ "$code" != 0 ]] || return 0
  case "$said" in
    *NOT_FOUND* | *"was not found"*) state=NONE ;;
    *"attribute [project]"* | *"property [project]"*)
      fail "no project is named; set PROJECT=ID, or run: gcloud config set project ID"
      ;;
    *"active account"*) fail "gcloud is not logged in; run: gcloud auth login" ;;
    *)
      line=$(grep -m 1 '^ERROR' <<< "$said" || head -n 1 <<< "$said")
      fail "gcloud cannot describe $name in $ZONE (${line#ERROR: }); check QR or TPU, ZONE and PROJECT"
      ;;
  esac
}

# What a state means for a person; nothing if commands can run.
advice() {
  case "$1" in
    NONE)
      if [[ -n "${QR:-}" ]]; then
        echo "no queued resource $QR in $ZONE; make it with ACCELERATOR=TYPE launch.sh create, or check QR, ZONE and PROJECT"
      else
        echo "no slice $TPU in $ZONE; check TPU, ZONE and PROJECT (QR=NAME is for queued resources)"
      fi
      ;;
    SUSPENDED | SUSPENDING | PREEMPTED)
      if [[ -n "${QR:-}" ]]; then
        echo "$name is $1: its machines were taken away, and the work directory is kept; run" \
          "ACCELERATOR=TYPE launch.sh restart [--spot] train ..., which deletes it, creates it again and resumes"
      else
        echo "$name is $1: its machines were taken away, and the work directory is kept; delete it" \
          "(launch.sh delete), create it again, then run launch.sh setup and the same train command"
      fi
      ;;
    FAILED)
      echo "$name is FAILED: the request was not fulfilled (quota, or no capacity in time);" \
        "see gcloud compute tpus queued-resources describe $name ${where[*]}, then create it again (launch.sh create)"
      ;;
    WAITING_FOR_RESOURCES | ACCEPTED | CREATING | PROVISIONING | STARTING | RESTARTING)
      echo "$name is $1: it is not ready; run launch.sh status until it is ACTIVE (READY for a slice)"
      ;;
    DELETING | STOPPED | STOPPING | TERMINATED)
      echo "$name is $1: it has no machines; create it again (launch.sh create) or start it"
      ;;
  esac
}

# Ends with one line if no command can run on the workers.
reachable() {
  [[ -z "${DRY_RUN:-}" ]] || return 0
  local text
  find_state
  text=$(advice "$state")
  [[ -z "$text" ]] || fail "$text"
}

delete() {
  if [[ -n "${QR:-}" ]]; then
    gcloud_tpu delete "$name" "${where[@]}" --force --quiet
  else
    gcloud_tpu delete "$name" "${where[@]}" --quiet
  fi
}

create() {
  local nodes=("--node-id=$QR")
  [[ "${SLICES:-1}" == 1 ]] || nodes=("--node-count=$SLICES" "--node-prefix=$QR")
  gcloud_tpu create "$QR" "${where[@]}" "--accelerator-type=$ACCELERATOR" \
    "--runtime-version=${RUNTIME:-$(runtime)}" "${nodes[@]}" "$@"
}

# Creates the queued resource, unless it is there; deletes one that is SUSPENDED or FAILED before.
create_again() {
  [[ -n "${DRY_RUN:-}" ]] || find_state
  case "${state:-}" in
    SUSPENDED | FAILED)
      [[ -n "${DRY_RUN:-}" ]] || echo "note: $QR is $state: it is deleted and created again" >&2
      delete
      create "$@"
      ;;
    NONE | '') create "$@" ;;
    SUSPENDING | DELETING) fail "$QR is $state; run the same command in a minute" ;;
    *) echo "note: $QR is there already: $state" >&2 ;;
  esac
}

wait_until_active() {
  local text
  if [[ -n "${DRY_RUN:-}" ]]; then
    describe
    return
  fi
  while true; do
    find_state
    case "$state" in
      ACTIVE) return ;;
      SUSPENDED | FAILED | NONE)
        text=$(advice "$state")
        fail "$text"
        ;;
    esac
    echo "note: $QR is $state; asked again in ${POLL:-60} seconds" >&2
    sleep "${POLL:-60}"
  done
}

setup() {
  local top
  top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  archive=$(mktemp -d) # macOS's mktemp has no suffix
  trap 'rm -rf "$archive"' EXIT
  git -C "$top" archive --format=tar.gz -o "$archive/t5x_lite.tar.gz" HEAD ||
    fail "$top is not a git checkout with a commit; setup installs the last commit of one"
  gcloud_tpu scp "$archive/t5x_lite.tar.gz" "$name:t5x_lite.tar.gz" "${where[@]}" "${everywhere[@]}" \
    ${ssh_options[@]+"${ssh_options[@]}"}
  on_all "rm -rf t5x_lite.new && mkdir t5x_lite.new && tar -xzf t5x_lite.tar.gz -C t5x_lite.new \
&& PYTHON=$(printf '%q' "${PYTHON:-}") bash t5x_lite.new/scripts/tpu/worker.sh setup ${EXTRAS:-tpu}"
}

# train or run, and its arguments: sets $started to the command for the workers, $target, $arguments.
parse_start() {
  local verb=$1 restarts=0 settings=''
  arguments=()
  shift
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --restarts) restarts=${2:-} && shift ;;
      --restarts=*) restarts=${1#*=} ;;
      --restart | --restart=*) fail "no option --restart; did you mean --restarts?" ;;
      *) arguments+=("$1") ;;
    esac
    shift || break
  done
  while [[ "${arguments[0]:-}" =~ ^[A-Z_][A-Z0-9_]*= ]]; do
    settings+="${arguments[0]%%=*}=$(printf '%q' "${arguments[0]#*=}") "
    arguments=("${arguments[@]:1}")
  done
  if [[ "$verb" == run && "${arguments[0]:-}" == t5x-lite ]]; then
    arguments=("${arguments[@]:1}")
  fi
  if [[ ${#arguments[@]} == 0 ]]; then
    [[ "$verb" == run ]] || fail "train needs a config; for example: launch.sh train CONFIG --workdir gs://BUCKET/run"
    fail "run needs a command of t5x-lite; for example: launch.sh run evaluate CONFIG --checkpoint WORKDIR --output DIR"
  fi
  if [[ ! "$restarts" =~ ^[0-9]+$ ]]; then
    fail "--restarts needs a whole number, got '$restarts'; for example --restarts 20"
  fi
  [[ "$verb" == run || "${arguments[0]}" != -* ]] ||
    fail "train needs a config before its options, got ${arguments[0]}; for example: launch.sh train CONFIG --workdir gs://BUCKET/run"
  target=("${everywhere[@]}")
  [[ "$verb" != run || -z "${WORKER:-}${NODE:-}" ]] || target=("${first[@]}")
  started="${settings}RESTART_WAIT=${RESTART_WAIT:-120} $worker $verb $restarts $(printf '%q ' "${arguments[@]}")"
}

# Says that no work directory is kept, and that a config of this machine is not the workers' one,
# because setup installs the last commit.
note_config() {
  local word workdir='' last='' top
  for word in "${arguments[@]}"; do
    [[ "$last" != --workdir ]] || workdir=$word
    [[ "$word" != --workdir=* ]] || workdir=${word#*=}
    last=$word
  done
  if [[ "$1" == train && -z "$workdir" && "${arguments[0]}" == *.py ]]; then
    echo "note: without --workdir gs://BUCKET/NAME nothing is saved, unless the config names a directory" >&2
  elif [[ -n "$workdir" && "$workdir" != *://* ]]; then
    echo "note: the work directory is on the disks of the workers, which a preemption deletes; use gs://BUCKET/NAME" >&2
  fi
  top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  git -C "$top" rev-parse --quiet --verify HEAD > /dev/null 2>&1 || return 0
  for word in "${arguments[@]}"; do
    [[ "$word" == *.py && "$word" != /* ]] || continue
    if ! git -C "$top" cat-file -e "HEAD:$word" 2> /dev/null; then
      echo "note: $word is not in the last commit here; commit it and run setup, or copy it to the workers" >&2
    elif ! git -C "$top" diff --quiet HEAD -- "$word"; then
      echo "note: $word has changes that are not committed; the workers have the file of the last setup" >&2
    fi
    return
  done
}

# Files to all workers (the last word is :PATH there), or from one (:PATH is the first word).
copy() {
  [[ $# -ge 2 ]] || fail "copy needs files and a destination; copy FILE... :DIRECTORY, or copy :FILE... DIRECTORY"
  local word last=${*: -1} remote=0 sources=("${@:1:$#-1}") options=()
  for word in "$@"; do
    [[ "$word" != *://* ]] ||
      fail "$word is in a bucket, which every worker reads by itself; copy to or from a bucket with: gcloud storage cp"
  done
  for word in "${sources[@]}"; do [[ "$word" != :* ]] || remote=$((remote + 1)); done
  if [[ "$last" == :* && $remote == 0 ]]; then
    for word in "${sources[@]}"; do
      [[ -e "$word" ]] || fail "no file or directory $word; check the path"
      [[ ! -d "$word" ]] || options=(--recurse)
    done
    reachable
    echo "note: a bucket (gs://) keeps files when the slice is deleted; a copy on the workers does not" >&2
    gcloud_tpu scp "${sources[@]}" "$name$last" "${where[@]}" "${everywhere[@]}" \
      ${options[@]+"${options[@]}"} ${ssh_options[@]+"${ssh_options[@]}"}
  elif [[ "$last" != :* && $remote == "${#sources[@]}" ]]; then
    reachable
    gcloud_tpu scp "${sources[@]/#:/$name:}" "$last" "${where[@]}" "${first[@]}" --recurse \
      ${ssh_options[@]+"${ssh_options[@]}"}
  else
    fail "copy needs one side on the workers, written as :PATH; copy FILE... :DIRECTORY, or copy :FILE... DIRECTORY"
  fi
}

confirm_delete() {
  local quiet='' word answer
  for word in "$@"; do
    case "$word" in
      --force | --quiet) quiet=1 ;;
      *) fail "delete does not take $word; use --force or --quiet, which ask nothing" ;;
    esac
  done
  if [[ -z "${DRY_RUN:-}" ]]; then
    find_state
    if [[ "$state" == NONE ]]; then
      echo "no $name in $ZONE: nothing to delete"
      return
    fi
    if [[ -z "$quiet" ]]; then
      answer=''
      read -r -p "delete $name in $ZONE and all its machines? [y/N] " answer || true
      [[ "$answer" == [yY]* ]] || fail "$name is kept; answer y, or pass --force"
    fi
  fi
  delete
}

command=$1
shift
worker='bash t5x_lite/scripts/tpu/worker.sh'
case "$command" in
  create)
    queued
    accelerated
    create_again "$@"
    ;;
  describe)
    alone "$@"
    queued
    if [[ -n "${DRY_RUN:-}" ]]; then
      describe
    else
      find_state
      [[ "$state" != NONE ]] || fail "$(advice NONE)"
      echo "$state"
    fi
    ;;
  setup)
    alone "$@"
    reachable
    setup
    ;;
  train | run)
    parse_start "$command" "$@"
    reachable
    note_config "$command"
    on "${target[@]}" -- "$started"
    ;;
  restart)
    queued
    accelerated
    options=()
    while [[ $# -gt 0 && "$1" != train && "$1" != run ]]; do options+=("$1") && shift; done
    [[ $# -ge 1 ]] || fail "restart needs the command to start; for example: launch.sh restart --spot train CONFIG ..."
    parse_start "$@"
    [[ -z "${DRY_RUN:-}" ]] || state=SUSPENDED
    create_again ${options[@]+"${options[@]}"}
    wait_until_active
    setup
    note_config "$1"
    on "${target[@]}" -- "$started"
    ;;
  logs)
    alone "$@"
    reachable
    on "${first[@]}" -- "tail -n 50 -F t5x_lite.log"
    ;;
  status)
    alone "$@"
    if [[ -z "${DRY_RUN:-}" ]]; then
      find_state
      text=$(advice "$state")
      [[ "$state" != NONE ]] || fail "$text"
      echo "${text:-$state}"
      [[ -z "$text" ]] || exit 0
    elif [[ -n "${QR:-}" ]]; then
      describe
    fi
    on_all "$worker status"
    ;;
  stop)
    alone "$@"
    reachable
    on_all "$worker stop"
    ;;
  copy) copy "$@" ;;
  delete) confirm_delete "$@" ;;
  *) fail "no command $command; the commands are create, describe, setup, train, run, restart, logs, status, stop, copy and delete" ;;
esac
