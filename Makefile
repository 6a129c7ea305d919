# `make run` shows an agent at work, `make test` runs the checks; both make the environment first.
# PYTHON: the first of these that is new enough; give another with `make run PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Commands and tests start many processes: none should compile every module anew, as some images have it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-all check lock docs bench clean

run: $(STAMP)
	@$(BIN)/ratchet run --agent examples/agents/log_detective.yaml \
		"Which service fails most, and since when?"

test: check
	$(BIN)/pytest -n 3 --dist loadfile -m "not exhaustive"

test-all: check
	$(BIN)/pytest -n 3 --dist loadfile

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m docs.generate

bench: $(STAMP)
	$(BIN)/python -m benchmarks.loop

lock: $(STAMP)
	$(BIN)/python deploy/environment.py lock

$(STAMP): requirements.lock pyproject.toml deploy/environment.py
	@$(if $(PYTHON),,$(error no Python 3.11 or newer found; install one or say PYTHON=path/to/python))
	@$(PYTHON) deploy/environment.py
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
