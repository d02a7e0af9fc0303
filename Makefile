# Everything runs in .venv, which `make setup` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3
WORKERS ?= 2
INSTALLER ?= uv# or pip, which also takes over where uv cannot be had
VENV := .venv
RUN := $(VENV)/bin/python
# One thread for each worker: torch would start as many as there are cores, in every process. Compiled modules are kept:
# each of the processes that tests start would compile all of mmrl again.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest
SHARED = -n $(WORKERS) --dist worksteal
FAST = -q $(SHARED) -m "not slow and not exhaustive and not gpu"
SLOW = -q -m "slow and not exhaustive and not gpu"
# Slow tests that start several processes or a browser have both cores for themselves; the others share them.
WHOLE = $(wildcard tests/training/test_processes*.py) tests/training/test_callbacks.py tests/environments tests/interop \
	tests/test_packaging.py $(wildcard tests/run_directory/test_r*.py) tests/run_directory/test_two_processes_on_one_run.py

.DEFAULT_GOAL := help
.PHONY: help setup quickstart lint test test-fast test-slow test-all exhaustive gpu docs mutants constraints clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## build .venv with everything that training and the tests need

# $(1) is what is installed. pip compiles nothing ahead, as uv does not: Python does it when it imports a module.
define install
	@echo "installing $(1) into $(VENV): half a minute by uv, some minutes by pip"
	@$(PYTHON) -m venv $(VENV)
	@set -f; wanted="install --editable $(1) --constraint constraints.txt"; \
	if [ "$(INSTALLER)" = pip ]; then $(RUN) -m pip -qq $$wanted --no-compile; \
	elif [ "$(INSTALLER)" != uv ]; then echo "INSTALLER must be uv or pip, got $(INSTALLER)"; exit 2; \
	elif $(RUN) -m pip -qq install uv --constraint constraints.txt \
		&& $(RUN) -m uv --quiet pip $$wanted --python $(RUN); then :; \
	else echo "uv did not install it; now by pip"; $(RUN) -m pip -qq $$wanted --no-compile; fi
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,.[dev])
	@touch $@ $(VENV)/.trains

$(VENV)/.trains: pyproject.toml constraints.txt
	$(call install,.)
	@touch $@

quickstart: $(VENV)/.trains ## install what training needs, train the embedded lab model and write a report
	$(VENV)/bin/mmrl train quickstart

lint: setup ## check style, format and types; with TYPES=mmrl those of the package alone
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy $(TYPES)

test: TYPES = mmrl# and what is linked in it; `make lint` and .ci/run check the tests and scripts too
test: setup ## lint and the fast tests, side by side; with COVERAGE=--cov the lines that they reach
	@$(MAKE) --no-print-directory -j2 lint test-fast TYPES="$(TYPES)"

test-fast: setup
	$(PYTEST) $(FAST) $(COVERAGE)

test-slow: setup ## the slow tests
	$(PYTEST) $(SLOW) $(SHARED) $(WHOLE:%=--ignore=%)
	$(PYTEST) $(SLOW) $(WHOLE) --durations=10

test-all: test test-slow ## the fast and the slow tests

exhaustive: setup ## every config and every kind of damage and kill, not one of each kind
	$(PYTEST) -q $(SHARED) -m "exhaustive and not gpu" --durations=10

gpu: ## measure on this machine's GPU, with the Python that is there: GROUP=1, 2 or 3 for a part
	$(PYTHON) -m benchmarks.gpu $(if $(GROUP),--group $(GROUP))

docs: setup ## build the site into site/, strictly: a warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict

mutants: setup ## plant faults one at a time and show that the tests catch each
	$(RUN) scripts/mutants.py

constraints: setup ## write what .venv holds into constraints.txt
	$(RUN) -m pip freeze --all --exclude-editable --exclude pip \
	| sed -E '/^(cuda|nvidia|triton)/ s/$$/; platform_system == "Linux"/' > constraints.txt
	@touch $(VENV)/.installed

clean: ## remove what builds and tests left behind
	rm -rf build dist *.egg-info .coverage htmlcov .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
