# make demo   simulate card payments, fit the three tiers and the baselines, compare them, end with the path of an HTML report
# make test   everything that decides whether a change is good: format, lint, types, layers, tests
# make lint   the same without the tests
# make bench  measure the engine, the features, the scores, the neural tier and the service, peers beside them; results go to benchmarks/results/
# make soak   100,000 made-up requests and a long run of faults against the live service
# make clean  remove the environment and all caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Some tests talk to a real Redis, and are skipped where there is none. It is installed where that needs no one's leave.
REDIS := command -v redis-server >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	(apt-get update -qq && apt-get install -y -qq redis-server) >/dev/null || echo "redis-server could not be installed; its tests are skipped"

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench soak clean

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
	$(REDIS)
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(PIP) -e ".[bench]"
	$(REDIS)
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(PIP) -e ".[baselines,neural,serve]"
	@touch $@

demo: $(VENV)/.installed-demo
	$(BIN)/turncoat demo

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two tests at a time; libraries get a thread each, since threads of several processes get in each other's way.
test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.engine --sweep
	$(BIN)/python -m benchmarks.features
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.neural
	$(BIN)/python -m benchmarks.service

soak: $(VENV)/.installed-test
	TURNCOAT_SOAK=100000 $(BIN)/python -m pytest tests/serving tests/conformance/test_stores.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -exec rm -rf {} +
