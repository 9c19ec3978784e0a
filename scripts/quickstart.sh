#!/usr/bin/env bash
# One command from a plain machine to a trained, evaluated and answering model, without a download
# of data: a vocabulary, a pretraining and a fine-tuning on the documentation that every Python
# installation carries. Under ten minutes on two cores, the installation included.
#
#   scripts/quickstart.sh            environment in .venv (or $T5X_LITE_VENV), results in work/quickstart
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

venv=${T5X_LITE_VENV:-.venv}
work=work/quickstart
make_environment "$venv" data
PATH="$(cd "$venv/bin" && pwd):$PATH"
export PATH
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
started=$SECONDS

# Shows the command that a person would type, runs it, and says how long it took.
step() {
  local begin=$SECONDS
  printf '\n$ %s\n' "$1"
  bash -euo pipefail -c "$1"
  printf '(%d s)\n' $((SECONDS - begin))
}

mkdir -p "$work"
if [[ ! -f $work/corpus/documents.jsonl ]]; then
  step "python -m t5x_lite.data.tasks.python_docs $work/corpus"
fi
if [[ ! -f $work/vocabulary/sentencepiece.model ]]; then
  step "t5x-lite vocab --input $work/corpus/documents.txt --output $work/vocabulary --size 4000"
fi
step "t5x-lite train configs/tiny_pretrain.py --workdir $work/pretrain"
step "t5x-lite train configs/tiny_finetune.py --workdir $work/finetune --init $work/pretrain"
step "t5x-lite evaluate configs/tiny_finetune.py --checkpoint $work/finetune --output $work/evaluation"

cat >"$work/questions.jsonl" <<'JSONL'
{"inputs": "module documentation: Lexer for the source code of the Rust programming language."}
{"inputs": "module documentation: Returns a tensor with the same shape, filled with zeros."}
{"inputs": "module documentation: Compute the eigenvalues of a sparse symmetric matrix."}
JSONL
step "t5x-lite predict --checkpoint $work/finetune --input $work/questions.jsonl --output $work/answers.jsonl"
step "t5x-lite report $work/finetune"

printf '\n== Done in %d s after the installation.\n' $((SECONDS - started))
python - "$work" <<'PYTHON'
import collections
import json
import pathlib
import sys

work = pathlib.Path(sys.argv[1])
metrics = json.loads((work / "evaluation" / "metrics.json").read_text())
lines = (work / "evaluation" / "predictions.jsonl").read_text().splitlines()
targets = collections.Counter(json.loads(line)["targets"] for line in lines)
label, count = targets.most_common(1)[0]
print("Trained a vocabulary, pretrained a small T5 by span corruption on Python's own documentation,")
print("and fine-tuned it to name the package that a text documents. On held-out texts:")
for name, value in sorted(metrics.items()):
    print(f"  {name:<28} {value:.4f}" if isinstance(value, float) else f"  {name:<28} {value}")
share = count / targets.total()
print(f"  {'always the majority class':<28} {share:.4f} ({label!r}, one of {len(targets)})")
print("What it answers:")
for line in (work / "answers.jsonl").read_text().splitlines():
    answer = json.loads(line)
    print(f"  {answer['inputs']!r} -> {answer['prediction']!r}")
print("Where to look:")
for path, what in (
    (work / "finetune" / "report.html", "curves, metrics and samples; opens in a browser, no network"),
    (work / "pretrain", "pretraining: config, checkpoints, metrics.jsonl, TensorBoard events"),
    (work / "finetune", "fine-tuning: the same"),
    (work / "evaluation", "metrics and predictions"),
):
    print(f"  {path}: {what}")
PYTHON
