#!/bin/sh
# run.sh [COUNT]: random scripts through both editions.
cd "$(dirname "$0")" || exit 1
count=${1:-1500} next=$(cd ../.. && pwd) out=$(mktemp -d)
PYTHONPATH="$next/.." "${PYTHON:-python}" old.py "$count" > "$out/old.jsonl" || exit 1
PYTHONPATH="$next" "${PYTHON:-python}" new.py "$count" > "$out/new.jsonl" || exit 1
"${PYTHON:-python}" compare.py "$out/old.jsonl" "$out/new.jsonl"
