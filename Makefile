# `make demo` and `make test` do all the setup themselves.
# PYTHON is the interpreter that builds the virtual environment. pyproject.toml defines the EXTRAS.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= cpu,train,export,serve,bento,photos,dev
SERVE ?= 1
# Slow tests wait for servers and processes more than they compute.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(1 + os.cpu_count())')
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start the package in hundreds of processes. Let them share compiled files.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dml-zoo needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $(READY)

$(READY)-docs: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[$(EXTRAS),docs]'
	@touch $@

$(READY)-slow: $(READY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[$(EXTRAS),peers,ray]'
	@touch $@

setup: $(READY) ## build a virtual environment in .venv with the versions of constraints.txt

demo: $(READY) ## train, measure, export, index, search and serve (SERVE=0 ends after the table; PHOTOS=DIR: your photographs)
	$(BIN)/python demo.py --serve $(SERVE) $(if $(PHOTOS),--photos "$(PHOTOS)")

check: $(READY) ## check style, format, layers, types and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose_lint.py
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

test: $(READY) ## run check and the quick tests at the same time, about 5 minutes
	$(MAKE) --no-print-directory --jobs 2 check tests

tests: $(READY)
	$(BIN)/python -m pytest --numprocesses logical --dist loadfile

slow: $(READY)-slow ## run the other tests, about 25 minutes: servers, processes, pages' commands, long runs, Ray, a Bento
	$(BIN)/python -m pytest -m 'slow and not proof' --numprocesses $(WORKERS) --dist loadfile --timeout 1200

docs: $(READY)-docs ## build the documentation in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY) ## compare speed and memory with other libraries, as ratios
	for script in tests/benchmarks/bench_*.py; do $(BIN)/python $$script; done

proof: $(READY) ## run the service's long proofs, about 25 minutes (PART=crash|load|fuzz; PROOF_OUT=folder for the figures)
	$(BIN)/python -m tests.proof $(PART) $(if $(PROOF_OUT),--out $(PROOF_OUT))

renew: $(READY) ## renew what is made of the code: public classes, the tree of docs/architecture.md, values of new definitions
	$(BIN)/python -m tools.public_classes
	$(BIN)/python -m tools.source_tree
	$(BIN)/python -m tests.training.test_definitions

lock: $(READY) ## update constraints.txt from pyproject.toml
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --upgrade \
	  --extra cpu --extra train --extra export --extra serve --extra bento --extra photos --extra ray --extra peers --extra dev --extra docs pyproject.toml --output-file constraints.txt

clean: ## remove everything that these targets made
	rm -rf $(VENV) .demo .proof .mypy_cache .ruff_cache .pytest_cache .hypothesis site

.PHONY: help setup demo check test tests slow docs bench proof renew lock clean
