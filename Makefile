# Everything runs in .venv, which `make setup` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3
WORKERS ?= 2
INSTALLER ?= uv# or pip, which also takes over where uv cannot be had
VENV := .venv
RUN := $(VENV)/bin/python
# One thread for each worker: torch would start as many as there are cores, in every process.
PYTEST = OMP_NUM_THREADS=1 $(RUN) -m pytest
# Slow tests of one process each may share the cores: every shipped config runs small, rewards read hostile texts.
ALONE = tests/test_configs.py tests/test_lab_configs.py tests/rewards tests/parsing/test_actions_hostile.py \
	tests/parsing/test_answers_hostile.py tests/run_directory/test_damaged_runs.py

.DEFAULT_GOAL := help
.PHONY: help setup quickstart lint test test-slow test-all docs mutants constraints clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## build .venv with everything that training and the tests need

INSTALL = install --editable '.[dev]' --constraint constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV): half a minute by uv, some minutes by pip"
	@$(PYTHON) -m venv $(VENV)
	@if [ "$(INSTALLER)" != uv ]; then $(RUN) -m pip -qq $(INSTALL); \
	elif $(RUN) -m pip -qq install uv --constraint constraints.txt \
		&& $(RUN) -m uv --quiet pip $(INSTALL) --python $(RUN); then :; \
	else echo "uv did not install it; now by pip"; $(RUN) -m pip -qq $(INSTALL); fi
	@touch $@

quickstart: setup ## train the embedded lab model and write a report
	$(VENV)/bin/mmrl train quickstart

lint: setup ## check style, format and types
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

test: lint ## lint, then the fast tests with their coverage
	$(PYTEST) -q -n $(WORKERS) --dist worksteal -m "not slow and not gpu" --cov

test-slow: setup ## the slow tests
	$(PYTEST) -q -n $(WORKERS) --dist worksteal -m "slow and not gpu" $(ALONE)
	$(PYTEST) -q -m "slow and not gpu" $(ALONE:%=--ignore=%) --durations=10

test-all: test test-slow ## everything

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
