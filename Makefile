# Every target makes its own virtual environment first; nothing else needs to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
SUITE ?=

.PHONY: help setup demo check format test coverage bench clean

help:
	@echo "make demo      draw pictures, build a store, inspect, verify and read it, train"
	@echo "make check     ruff, formatting, mypy --strict"
	@echo "make test      the whole test suite"
	@echo "make coverage  the test suite with branch coverage of ocrstore/format"
	@echo "make bench     the benchmarks under tools/, then docs/benchmarks.md (SUITE=--quick: 5 minutes)"
	@echo "make clean     remove the virtual environment and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,torch,lightning]"
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
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

coverage: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/format tests/test_*.py --cov=ocrstore/format --cov-report=term-missing

# each prints its table and goes on even where a target is missed; quiet machines give better figures.
# The suite against the peers comes last and writes docs/benchmarks.*: SUITE=--quick, SUITE=--resume
bench: setup
	-$(BIN)/python tools/bench_format.py
	-$(BIN)/python tools/bench_decode.py
	-$(BIN)/python tools/bench_maps.py
	-$(BIN)/python tools/bench_build.py
	-$(BIN)/python tools/bench_loader.py
	-$(BIN)/python tools/bench_memory.py
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python -m tools.bench $(SUITE)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .bench build dist
