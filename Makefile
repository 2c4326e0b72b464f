# make demo    three losses on long-tailed digits: a table and demo/report.html
# make test    lint, types, doctests, tests
# make docs    the documentation as a site, in site/index.html
# make faults  break the code on purpose, one fault after the other: the tests must catch each
# make lower-bounds  the tests with the oldest versions that pyproject.toml allows, in .venv-lower (6 GB)
#
# Each sets up .venv on its first run. An existing .venv is used as it is: to have a particular build of PyTorch
# (CPU only, say), make .venv and install that first.
#
# make lower-bounds PINS="torch=2.13.0 torchvision=0.28.0" gives some of the versions by hand. It is no part of what must
# pass before a change lands: run it when a requirement changes. Warnings are no errors there: old versions warn of each
# other; and the setuptools that comes with Python 3.11 must not bring its own distutils, which torch's compiler trips over.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test docs faults lower-bounds clean
.DELETE_ON_ERROR:

demo: .venv/demo-ready
	$(BIN)/equipoise demo

test: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist worksteal -q

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

faults: .venv/test-ready
	$(BIN)/python tools/faults.py

lower-bounds:
	$(PYTHON) -m venv .venv-lower
	.venv-lower/bin/python -m pip install --disable-pip-version-check $$($(PYTHON) tools/lower_bounds.py $(PINS)) -e .
	SETUPTOOLS_USE_DISTUTILS=stdlib .venv-lower/bin/python -m pytest -n auto -q -W default -p no:cacheprovider

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Equipoise needs Python 3.11 or newer, {sys.executable} is {v.major}.{v.minor}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/demo-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[cli,report]'
	touch $@

.venv/test-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e '.[dev]'
	$(BIN)/python -m compileall -q -j 0 .venv/lib > /dev/null || true  # what pip would do, on one core only
	touch $@ .venv/demo-ready .venv/docs-ready

.venv/docs-ready: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-lower demo build dist site .mypy_cache .pytest_cache .ruff_cache
