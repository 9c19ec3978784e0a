#!/usr/bin/env bash
# Runs scripts/bench/gpu.py from a checkout on a machine that has Python 3.12, jax, flax, optax and
# orbax, and nothing of t5x_lite installed:
#
#     scripts/bench/gpu.sh --budget 450
#     scripts/bench/gpu.sh compare --trace FOLDER     # plain, blocked and cuDNN's attention
#     scripts/bench/gpu.sh encoders                   # BERT, retrieval, RetroMAE, Condenser, LoRA
#     scripts/bench/gpu.sh peers                      # the same in PyTorch
#     scripts/bench/gpu.sh pretrain train --tokens TOKENS --output PIECES     # a small BERT or T5
#     scripts/bench/gpu.sh t5_study run --tokens TOKENS --data FILE     # tables 2 and 4 to 7 of T5
#     scripts/bench/gpu.sh study labels --data FILE --init PIECES --output RESULTS
#
# PYTHON chooses the interpreter. Preallocation leaves the rest of the memory to cuDNN and cuBLAS.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
script=gpu.py
if [[ "${1:-}" =~ ^(compare|encoders|peers|pretrain|study|t5_study)$ ]]; then
    script="gpu_$1.py"
    shift
fi
exec "${PYTHON:-python3}" "$root/scripts/bench/$script" "$@"
