# make demo    three losses on long-tailed digits: a table and demo/report.html
# make test    lint, types, doctests, tests
# make faults  break the code on purpose, one fault after the other: the tests must catch each
#
# Each sets up .venv on its first run. An existing .venv is used as it is: to have a particular build of PyTorch
# (CPU only, say), make .venv and install that first.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test faults clean
.DELETE_ON_ERROR:

demo: .venv/demo-ready
	$(BIN)/equipoise demo

test: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto -q

faults: .venv/test-ready
	$(BIN)/python tools/faults.py

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Equipoise needs Python 3.11 or newer, {sys.executable} is {v.major}.{v.minor}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/demo-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[cli,report]'
	touch $@

.venv/test-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@ .venv/demo-ready

clean:
	rm -rf .venv demo build dist .mypy_cache .pytest_cache .ruff_cache
