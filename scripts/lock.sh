#!/usr/bin/env bash
# Locks the environments of the two commands: every package with its version and the SHA-256 of
# each of its files, for Python 3.11 and 3.12 and every platform, without the address of an index.
#
#   scripts/lock.sh            writes scripts/locks/data.txt and scripts/locks/test.txt
#   scripts/lock.sh --check    writes nothing; ends with code 1 if a lock is not up to date
#   scripts/lock.sh --sbom     writes work/sbom/data.cdx.json and test.cdx.json (CycloneDX) from the locks
#   scripts/lock.sh --audit    asks for known vulnerabilities of the locked versions; needs a network
#
# Versions are those of constraints.txt. It needs uv, cyclonedx-bom and pip-audit (pip install uv
# cyclonedx-bom pip-audit) in an environment of their own, and, but for --sbom, a package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# make_lock EXTRAS PYTHON FILE
make_lock() {
  local extras=() extra
  for extra in ${1//,/ }; do extras+=(--extra "$extra"); done
  # The project itself is built without isolation: its build needs these two.
  printf 'hatchling\neditables\n' | uv pip compile pyproject.toml - "${extras[@]}" \
    --constraint constraints.txt --universal --python-version "$2" --generate-hashes \
    --no-emit-index-url --no-header --no-annotate --quiet --output-file "$3"
}

data=data
test=data,beam,c4,metrics,serve,docs,tables,dev
case ${1:-} in
  "")
    make_lock "$data" 3.11 scripts/locks/data.txt
    make_lock "$test" 3.11 scripts/locks/test.txt
    ;;
  --check)
    new=$(mktemp -d)
    trap 'rm -r "$new"' EXIT
    cp scripts/locks/*.txt "$new" # versions that constraints.txt leaves open stay
    make_lock "$data" 3.11 "$new/data.txt"
    make_lock "$test" 3.11 "$new/test.txt"
    diff -r scripts/locks "$new" || { echo "error: run scripts/lock.sh" >&2 && exit 1; }
    ;;
  --sbom)
    mkdir -p work/sbom
    for name in data test; do
      cyclonedx-py requirements "scripts/locks/$name.txt" --pyproject pyproject.toml \
        --mc-type application --output-reproducible --output-file "work/sbom/$name.cdx.json"
    done
    ;;
  --audit)
    for name in data test; do
      pip-audit --require-hashes --disable-pip --requirement "scripts/locks/$name.txt"
    done
    ;;
  *)
    echo "usage: scripts/lock.sh [--check|--sbom|--audit]" >&2
    exit 2
    ;;
esac
