#!/usr/bin/env bash
# One command on all workers of a Cloud TPU slice, from a machine that has gcloud.
#
#   TPU=NAME ZONE=us-west4-a scripts/tpu/launch.sh setup
#   TPU=NAME ZONE=us-west4-a scripts/tpu/launch.sh train configs/pretrain/t5_1_1_base.py \
#       --data.cache /data/c4 --data.vocabulary /data/spiece.model \
#       --workdir gs://BUCKET/t5_1_1_base
#   TPU=NAME ZONE=us-west4-a scripts/tpu/launch.sh logs | status | stop
#
# setup copies the last commit to ~/t5x_lite of every worker and installs it there, with the extra
# `tpu` and what reads gs:// (EXTRAS=tpu,data adds seqio and TensorFlow; PYTHON names the workers'
# Python, which must be 3.11 or later). train goes on after gcloud has left: its output is in
# ~/t5x_lite-train.log of each worker. The same train command resumes. stop makes the run save and
# end. PROJECT=ID names the project; DRY_RUN=1 prints what would be run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

[[ $# -ge 1 ]] || usage
: "${TPU:?set TPU to the name of the slice}"
: "${ZONE:?set ZONE to the zone of the slice}"
where=("--zone=$ZONE")
[[ -z "${PROJECT:-}" ]] || where+=("--project=$PROJECT")

gcloud_tpu() {
  if [[ -n "${DRY_RUN:-}" ]]; then
    printf '%q ' gcloud compute tpus tpu-vm "$@"
    echo
  else
    gcloud compute tpus tpu-vm "$@"
  fi
}

on_all() {
  gcloud_tpu ssh "$TPU" "${where[@]}" --worker=all --command="$1"
}

# Run by the workers, in the home directory.
running='kill -0 $(cat t5x_lite-train.pid 2> /dev/null) 2> /dev/null'

command=$1
shift
case "$command" in
  setup)
    archive=$(mktemp --suffix=.tar.gz)
    trap 'rm -f "$archive"' EXIT
    git archive --format=tar.gz -o "$archive" HEAD
    gcloud_tpu scp "$archive" "$TPU:t5x_lite.tar.gz" "${where[@]}" --worker=all
    on_all "rm -rf t5x_lite && mkdir t5x_lite && tar -xzf t5x_lite.tar.gz -C t5x_lite &&
cd t5x_lite && ${PYTHON:-python3} -m venv ../t5x_lite-venv &&
../t5x_lite-venv/bin/pip install --quiet -e '.[${EXTRAS:-tpu}]' gcsfs -c constraints.txt"
    ;;
  train)
    [[ $# -ge 1 ]] || usage
    arguments=$(printf '%q ' "$@")
    on_all "if $running; then echo 'a run goes on already: stop it first' >&2; exit 1; fi
cd t5x_lite && { nohup ../t5x_lite-venv/bin/t5x-lite train $arguments \
> ../t5x_lite-train.log 2>&1 < /dev/null & echo \$! > ../t5x_lite-train.pid; }"
    ;;
  logs)
    gcloud_tpu ssh "$TPU" "${where[@]}" --worker="${WORKER:-0}" \
      --command="tail -n 50 -F t5x_lite-train.log"
    ;;
  status)
    on_all "hostname; if $running; then echo 'a run goes on'; else echo 'no run'; fi
tail -n 2 t5x_lite-train.log"
    ;;
  stop) on_all "if $running; then kill -TERM \$(cat t5x_lite-train.pid); fi" ;;
  *) usage ;;
esac
