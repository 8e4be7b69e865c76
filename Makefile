# make demo   simulate card payments, fit the three tiers and the baselines, compare them, end with the path of an HTML report
# make test   everything that decides whether a change is good: format, lint, types, layers, tests
# make lint   the same without the tests
# make bench  measure the engine, the features, the scores and the neural tier, peers beside them; results go to benchmarks/results/
# make clean  remove the environment and all caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Turncoat needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e ".[test]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(PIP) -e ".[bench]"
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(PIP) -e ".[baselines,neural]"
	@touch $@

demo: $(VENV)/.installed-demo
	$(BIN)/turncoat demo

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.engine --sweep
	$(BIN)/python -m benchmarks.features
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.neural

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -exec rm -rf {} +
