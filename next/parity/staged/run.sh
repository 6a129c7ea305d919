#!/bin/sh
# Both editions over the same seeds: run.sh FIRST LAST
cd "$(dirname "$0")" || exit 1
python=${PYTHON:-python}
PYTHONPATH=../../..:. $python old.py "$1" "$2" > /tmp/staged_old.jsonl &&
PYTHONPATH=../..:. $python new.py "$1" "$2" > /tmp/staged_new.jsonl &&
$python compare.py /tmp/staged_old.jsonl /tmp/staged_new.jsonl
