# labkit: `make help` lists the commands. Everything is installed into .venv by plain pip.
#
#   PYTHON    the interpreter that makes .venv (3.11 or later)
#   PIP_ARGS  further arguments for pip install, such as an index with CPU builds of torch
#   JOBS      parallel test processes, each with one torch thread
#   MODEL     what `make serve` serves
#   LAB_ARGS  further arguments for JupyterLab, such as --no-browser, or --allow-root in a container

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PIP_ARGS ?=
JOBS ?= logical
MODEL ?= smollm2
LAB_ARGS ?=
VENV ?= .venv

BIN := $(VENV)/bin
# An install is done again when what it follows from has changed, whatever the files' times say.
KEY := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
ONE_THREAD := OMP_NUM_THREADS=1

.PHONY: help demo lab serve doctor build kernel-page test test-slow test-gpu format clean

help:  ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

demo: $(VENV)/.core-$(KEY)  ## install, fetch a small pretrained model, and let it answer
	$(BIN)/labkit demo

lab: $(VENV)/.notebooks-$(KEY)  ## open the first chapter in JupyterLab
	$(BIN)/python -m jupyter lab $(LAB_ARGS) notebooks/00_start_here.ipynb

serve: $(VENV)/.serve-$(KEY)  ## start the HTTP server (MODEL=...)
	$(BIN)/labkit serve -m $(MODEL)

doctor: $(VENV)/.core-$(KEY)  ## what this machine can do, and the cure for each gap
	$(BIN)/labkit doctor

build: $(VENV)/.core-$(KEY)  ## compile every CUDA kernel for the V100 and list what each takes
	$(BIN)/labkit build

kernel-page: $(VENV)/.core-$(KEY)  ## write docs/kernels.md and cuda/shipped.json again
	$(BIN)/python tools/kernel_page.py

test: $(VENV)/.test-$(KEY)  ## lint, types, import rules, fast tests, notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m "not slow"
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadscope \
		--nbval-lax --nbval-current-env --nbval-cell-timeout=300 notebooks

test-slow: $(VENV)/.test-$(KEY)  ## the long tests; leaves a dated record in tests/records/
	@mkdir -p build
	status=0; GOMP_SPINCOUNT=10000 $(BIN)/python -m pytest -m slow --junitxml=build/slow.xml -o junit_family=xunit1 || status=$$?; \
		$(BIN)/python tests/record.py build/slow.xml tests/records && exit $$status

# In the environment at hand, such as that of environment.yml: .venv has the torch of constraints.txt, not for a V100.
test-gpu:  ## every kernel on the GPU of this machine, with PYTHON's torch and CuPy
	$(PYTHON) -m pytest tests/gpu

format: $(VENV)/.test-$(KEY)  ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove build output and caches (.venv stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(VENV)/.core-$(KEY): PACKAGE := .
$(VENV)/.notebooks-$(KEY): PACKAGE := .[notebooks]
$(VENV)/.serve-$(KEY): PACKAGE := .[serve]
$(VENV)/.test-$(KEY): PACKAGE := .[test]

$(VENV)/.core-$(KEY) $(VENV)/.notebooks-$(KEY) $(VENV)/.serve-$(KEY) $(VENV)/.test-$(KEY): | $(BIN)/python
	@echo "Installing labkit into $(VENV); the first time this takes some minutes."
	set -o pipefail; $(BIN)/python -m pip install -c constraints.txt $(PIP_ARGS) -e '$(PACKAGE)' \
		| { grep -v '^Requirement already satisfied' || true; }
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "labkit needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
