# Everything sets itself up: a machine with Python 3.11 or later, pip and make is enough.
#   make test     style, types, direction of imports, and the tests        make demo    see it work, kills included
#   make faults   long campaigns that kill and cut things                  make up      the whole stack on this machine
#   make bench    measurements against plain Celery                        make lint    the checks without the tests

PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && python3.11 -V >/dev/null 2>&1 && echo python3.11 || echo python3)
VENV ?= .venv
JOBS ?= 2
ARGS ?=
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --no-warn-script-location
# Variables of the caller's shell must not reach into the tests.
CLEAN := env -u CONDUCTOR_REDIS_URL -u CONDUCTOR_NAMESPACE -u CONDUCTOR_DURABILITY -u CONDUCTOR_FAILPOINTS -u CELERY_BROKER_URL -u CELERY_APP \
  -u CONDUCTOR_URL -u CONDUCTOR_TOKEN

.DEFAULT_GOAL := test
.PHONY: test lint faults bench demo up setup clean

test: lint
	@echo "tests"
	@$(CLEAN) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

lint: $(VENV)/.dev
	@echo "style"
	@$(BIN)/ruff check --quiet .
	@echo "types"
	@$(BIN)/mypy --no-error-summary
	@echo "direction of imports"
	@$(BIN)/lint-imports --no-logo >$(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log; exit 1; }

faults: $(VENV)/.dev
	@$(CLEAN) $(BIN)/python -m pytest -q -n $(JOBS) --timeout 3600 -m faults tests $(ARGS)

# With ARGS only the rows that they choose; without, everything: the rows, then the measurements that need the real service.
bench: $(VENV)/.dev
	@status=0; $(BIN)/python -m ops.bench $(ARGS) || status=$$?; \
	  [ -n "$(ARGS)" ] || $(CLEAN) $(BIN)/python -m pytest -q -n 0 -s -m bench tests || status=$$?; exit $$status

demo: $(VENV)/.run
	@$(BIN)/conductor demo $(ARGS)

up: $(VENV)/.run
	@$(BIN)/conductor dev $(ARGS)

setup: $(VENV)/.dev

# Only a changed pyproject.toml installs again; the code itself is used where it lies.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing what it needs into $(VENV)"
	@$(PIP) -e '.[embedded,flower]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing what it and its tests need into $(VENV) (about a minute, only when pyproject.toml changed)"
	@$(PIP) -e '.[dev,embedded,flower]'
	@touch $@ $(VENV)/.run

# Debian's Python has `venv` but, without the package python3-venv, no `ensurepip`: then the machine's own pip puts pip into the environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Conductor needs Python 3.11 or later, found: $$($(PYTHON) -V 2>&1). Name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
	  { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; } || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find conductor workers ops tests -name __pycache__ -type d -prune -exec rm -rf {} +
