# Every target makes its own virtual environment first; nothing else needs to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# EXTRAS=dev is enough where there is no torch: what needs it is skipped
EXTRAS ?= dev,torch,lightning
COMMA := ,
STAMP := $(VENV)/.installed-$(subst $(COMMA),-,$(EXTRAS))
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
SUITE ?=
LOWEST := $(VENV)-lowest

.PHONY: help setup bench-setup demo check format test test-slow test-lowest test-gpu gpu-check docs coverage torture bench bench-quick clean

help:
	@echo "make demo        draw pictures, build a store, inspect, verify and read it, train, eval, predict"
	@echo "make check       ruff, formatting, mypy --strict"
	@echo "make docs        the documentation as a web site, in site/"
	@echo "make test        the quick test suite; EXTRAS=dev where there is no torch"
	@echo "make test-slow   the long tests: browsers, compiled networks, several processes"
	@echo "make test-lowest the quick suite with the lowest versions that pyproject.toml allows; for Python 3.11"
	@echo "make test-gpu    the tests that need a GPU"
	@echo "make gpu-check   check loading and training on your GPUs; ends in a table and gpu-check.json"
	@echo "make coverage    the test suite with branch coverage of ocrstore/format"
	@echo "make torture     attack every command for an hour; the findings are in .torture/state.json"
	@echo "make bench       all benchmarks under tools/ (hours), with docs/benchmarks.md and its plots"
	@echo "make bench-quick the comparison with others, in five minutes, into .bench/quick"
	@echo "make clean       remove the virtual environment and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $(STAMP)

demo: setup
	$(BIN)/python tools/demo.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup
	$(PYTEST) -m "not slow and not gpu"

test-slow: setup
	$(PYTEST) -m "slow and not gpu"

# numpy 1.26 has no wheels for Python 3.13, and the lowest pyclipper none for 3.12
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tools/lowest.py > $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --requirement $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --editable .
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not gpu"

test-gpu: setup
	$(PYTEST) -n 0 -m gpu

gpu-check: setup
	$(BIN)/python tools/gpu_check.py

docs: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/sphinx-build -q -W --keep-going -b html docs site
	@echo "site/index.html"

coverage: setup
	$(PYTEST) tests/format tests/test_*.py --cov=ocrstore/format --cov-report=term-missing

torture: setup
	$(BIN)/python -m tools.torture

# each prints its table and goes on even where a target is missed; quiet machines give better figures.
# The comparison with others comes last; SUITE=--resume goes on with it where it was stopped
bench: bench-setup
	-$(BIN)/python tools/bench_format.py
	-$(BIN)/python tools/bench_decode.py
	-$(BIN)/python tools/bench_maps.py
	-$(BIN)/python tools/bench_build.py
	-$(BIN)/python tools/bench_loader.py
	-$(BIN)/python tools/bench_memory.py
	-$(BIN)/python tools/bench_epoch.py --plot docs/images/epochs.png --page docs/figures/epochs.md
	-$(BIN)/python tools/bench/scale.py
	$(BIN)/python -m tools.bench $(SUITE)

bench-quick: bench-setup
	$(BIN)/python -m tools.bench --quick

bench-setup: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"

clean:
	rm -rf $(VENV) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis .bench build dist site
