#!/usr/bin/env bash
# One command on all workers of Cloud TPU slices, from a machine that has gcloud.
#
#   export TPU=NAME ZONE=us-west4-a         # an existing slice, or:
#   export QR=NAME ZONE=us-west4-a          # a queued resource, of one slice or several
#   ACCELERATOR=v5litepod-16 SLICES=2 scripts/tpu/launch.sh create [--spot ...]     # with QR only
#   scripts/tpu/launch.sh describe          # with QR only: its state; wait until it is ACTIVE
#   scripts/tpu/launch.sh setup
#   scripts/tpu/launch.sh train [--restarts 20] configs/pretrain/t5_1_1_base.py \
#       --data.cache /data/c4 --data.vocabulary /data/spiece.model \
#       --workdir gs://BUCKET/t5_1_1_base [--mesh.replica 2]
#   scripts/tpu/launch.sh logs | status | stop
#
# setup copies the last commit to ~/t5x_lite of every worker and installs it there, with the extra
# `tpu` and what reads gs:// (EXTRAS=tpu,data adds seqio and TensorFlow). Where the workers' Python is
# older than 3.11, uv brings 3.12; PYTHON=PATH names another one, 3.11 or 3.12. create takes
# RUNTIME=VERSION, the image's software version, and gcloud's options. train goes on after gcloud has
# left: its output is in ~/t5x_lite-train.log of each worker. The same train command resumes.
# --restarts N starts a run that failed or was preempted again, N times at most, after RESTART_WAIT
# seconds (120); worker.sh has the rules. stop makes the run save and end. logs is of WORKER=0 and
# NODE=0, the first host of the first slice. PROJECT=ID names the project; DRY_RUN=1 prints what
# would be run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

[[ $# -ge 1 ]] || usage
name=${QR:-${TPU:?set TPU to the name of the slice, or QR to that of the queued resource}}
: "${ZONE:?set ZONE to the zone of the slice}"
where=("--zone=$ZONE")
[[ -z "${PROJECT:-}" ]] || where+=("--project=$PROJECT")
if [[ -n "${QR:-}" ]]; then
  kind=queued-resources everywhere=(--node=all --worker=all)
  first=("--node=${NODE:-0}" "--worker=${WORKER:-0}")
else
  kind=tpu-vm everywhere=(--worker=all)
  first=("--worker=${WORKER:-0}")
fi

gcloud_tpu() {
  local words=(gcloud compute tpus "$kind" "$@")
  if [[ -n "${DRY_RUN:-}" ]]; then
    printf '%q ' "${words[@]}"
    echo
  else
    "${words[@]}"
  fi
}

on_all() {
  gcloud_tpu ssh "$name" "${where[@]}" "${everywhere[@]}" --command="$1"
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
  [[ -n "${QR:-}" ]] || {
    echo "error: $command works on queued resources: set QR to the name of one" >&2
    exit 2
  }
}

describe() {
  gcloud_tpu describe "$QR" "${where[@]}" --format='value(state.state)'
}

command=$1
shift
worker='bash t5x_lite/scripts/tpu/worker.sh'
case "$command" in
  create)
    queued
    : "${ACCELERATOR:?set ACCELERATOR to the type of a slice, such as v5litepod-16}"
    nodes=("--node-id=$QR")
    [[ "${SLICES:-1}" == 1 ]] || nodes=("--node-count=$SLICES" "--node-prefix=$QR")
    gcloud_tpu create "$QR" "${where[@]}" "--accelerator-type=$ACCELERATOR" \
      "--runtime-version=${RUNTIME:-$(runtime)}" "${nodes[@]}" "$@"
    ;;
  describe)
    queued
    describe
    ;;
  setup)
    archive=$(mktemp --suffix=.tar.gz)
    trap 'rm -f "$archive"' EXIT
    git archive --format=tar.gz -o "$archive" HEAD
    gcloud_tpu scp "$archive" "$name:t5x_lite.tar.gz" "${where[@]}" "${everywhere[@]}"
    on_all "rm -rf t5x_lite.new && mkdir t5x_lite.new && tar -xzf t5x_lite.tar.gz -C t5x_lite.new \
&& PYTHON=$(printf '%q' "${PYTHON:-}") bash t5x_lite.new/scripts/tpu/worker.sh setup ${EXTRAS:-tpu}"
    ;;
  train)
    restarts=0 arguments=()
    while [[ $# -gt 0 ]]; do
      case "$1" in
        --restarts) restarts=${2:-} && shift ;;
        --restarts=*) restarts=${1#*=} ;;
        *) arguments+=("$1") ;;
      esac
      shift || break
    done
    [[ ${#arguments[@]} -ge 1 && "$restarts" =~ ^[0-9]+$ ]] || usage
    on_all "RESTART_WAIT=${RESTART_WAIT:-120} $worker train $restarts $(printf '%q ' "${arguments[@]}")"
    ;;
  logs)
    gcloud_tpu ssh "$name" "${where[@]}" "${first[@]}" --command="tail -n 50 -F t5x_lite-train.log"
    ;;
  status)
    [[ -z "${QR:-}" ]] || describe
    on_all "$worker status"
    ;;
  stop) on_all "$worker stop" ;;
  *) usage ;;
esac
