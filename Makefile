# make demo   simulate card payments, compare all models with the baselines, write an HTML report
# make test   check format, lint, types and layers, then run all tests (what CI runs)
# make lint   the same checks without the tests
# make bench  measure speed and memory beside peer libraries; writes benchmarks/results/
# make quality DATA=FILE   compare detectors with XGBoost again, on the Handbook's payments (hours)
# make soak   run the fuzzing and fault tests of the service for a long time (100,000 requests)
# make clean  remove the environment and all caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Some tests need redis-server, nginx and chromium, and are skipped without. Install them if root on
# Debian.
INSTALL = command -v $(1) >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	(apt-get update -qq && apt-get install -y -qq $(2)) >/dev/null || \
	echo "could not install $(1); its tests will be skipped"
REDIS := $(call INSTALL,redis-server,redis-server)
NGINX := $(call INSTALL,nginx,nginx-light)
CHROMIUM := $(call INSTALL,chromium,chromium)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench quality soak clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Turncoat needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e ".[test]"
	$(REDIS)
	$(NGINX)
	$(CHROMIUM)
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

# Two tests at a time, one thread per library: threads of several processes slow each other down.
test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.engine --sweep
	$(BIN)/python -m benchmarks.features
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.neural
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.service.kinds --kind hybrid
	$(BIN)/python -m benchmarks.service.kinds --kind chains
	$(BIN)/python -m benchmarks.chains_cost

quality: $(VENV)/.installed-demo
	@test -n "$(DATA)" || (echo "give the Handbook's payments: make quality DATA=FILE; see docs/benchmarks.md" && false)
	$(BIN)/python -m benchmarks.champion --data "$(DATA)"
	$(BIN)/python -m benchmarks.handbook_limit --data "$(DATA)"
	$(BIN)/python -m benchmarks.book_recipe --data "$(DATA)"
	$(BIN)/python -m benchmarks.chains
	$(BIN)/python -m benchmarks.neural_study

soak: $(VENV)/.installed-test
	TURNCOAT_SOAK=100000 $(BIN)/python -m pytest tests/serving tests/conformance/test_stores.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -exec rm -rf {} +
