#!/bin/sh
# run.sh [FIRST [LAST]]: random scripts through both editions.
cd "$(dirname "$0")" || exit 1
first=${1:-0} last=${2:-2000} next=$(cd ../.. && pwd) out=$(mktemp -d)
PYTHONPATH="$next/.." "${PYTHON:-python}" old.py "$first" "$last" > "$out/old.jsonl" || exit 1
PYTHONPATH="$next" "${PYTHON:-python}" new.py "$first" "$last" > "$out/new.jsonl" || exit 1
"${PYTHON:-python}" compare.py "$out/old.jsonl" "$out/new.jsonl"
