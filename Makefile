# `make run` shows an agent at work, `make test` runs the checks; both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: run test test-all check lock docs clean

run: $(STAMP)
	$(BIN)/ratchet run --agent examples/agents/log_detective.yaml \
		"Which service fails most, and since when?"

test: $(STAMP) check
	$(BIN)/pytest -m "not exhaustive"

test-all: $(STAMP) check
	$(BIN)/pytest

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m docs.generate

lock: $(STAMP)
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --generate-hashes \
		--no-emit-index-url --no-header --quiet -o requirements.lock

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
