# From a fresh clone: `make serve` runs the service, `make test` checks it in minutes, and `make
# test-all` checks what takes longer, too, with examples that no run had before.

PYTHON ?= python3
BIN := .venv/bin
# Files as old as what they say is installed.
DEPENDENCIES := .venv/.dependencies
PACKAGE := .venv/.package
TOOLS := .venv/.tools
TYPES := .venv/.types
# Most tests wait, so there may be more of them than cores; those behind `test` compute.
WORKERS ?= 3
LONG_WORKERS ?= 2
# A file's tests share what they start, and stay together; see tests/side_by_side.py.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
INSTALL := $(BIN)/python install.py
# Tests are many processes: where an environment says so, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup develop serve test test-all suites lint gpu-check

setup: $(PACKAGE)
	@$(BIN)/python -m engine.model.weights > /dev/null

# What tests, linters and benches need, too.
develop: setup $(TOOLS)

serve: setup
	@exec $(BIN)/partywall serve $(ARGS)

# Types are checked beside the tests, which leave a core idle now and then, and told last.
test: develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy > $(TYPES) 2>&1 & types=$$!; $(PYTEST) -n $(WORKERS); status=$$?; \
	wait $$types || status=$$?; cat $(TYPES); exit $$status

# Behind `test`: what is long, and random examples again, more of them and others. They are drawn from
# SEED, which is fresh unless it is given: the same one finds the same again.
test-all: SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test-all: test
	@echo "examples are drawn from seed $(SEED): make test-all SEED=$(SEED)"
	$(PYTEST) -n $(LONG_WORKERS) -m "exhaustive or hypothesis or scaled" --hypothesis-profile=exhaustive \
		--hypothesis-seed=$(SEED)

# What others wrote to call such a service, in environments of its own: installs packages from PyPI
# and npm. ARGS="ai-sdk --json suites.json" runs one of them; see docs/clients.md.
suites: develop
	$(BIN)/python -m tests.suites $(ARGS)

# Where npm is there, the console's pages, too: their types, by JSDoc, and a linter.
lint: develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v npm > /dev/null; then \
		set -x; cd tests/app/console/lint && npm install --silent --no-package-lock && npm run --silent lint; \
	else echo "npm is not installed: the console's pages are not checked" >&2; fi

# On a machine with a CUDA device: checks what only that can show, and measures it, in minutes.
# $(PYTHON) needs torch, triton, transformers, msgspec, psutil, rich, pytest with its timeout plugin,
# and hypothesis. Nothing is installed, and no service is run. A part that fails hides no other.
gpu-check:
	$(PYTHON) -c 'import torch; assert torch.cuda.is_available(), "there is no CUDA device here"'
	@status=0; set -x; \
	$(PYTHON) -m pytest -k gpu tests/kernels/triton/test_triton.py tests/kernels/triton/test_experts.py tests/kernels/triton/test_adapters.py tests/engine/run/test_graphs.py || status=1; \
	$(PYTHON) -m bench kernels --json gpu-kernels.json || status=1; \
	$(PYTHON) -m bench gpu --json gpu.json || status=1; \
	exit $$status

$(DEPENDENCIES): install.py pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; set PYTHON=python3.x")'
	@echo "setup 1/4: creating .venv"
	@$(PYTHON) -m venv .venv
	@$(INSTALL)
	@touch $@

# Side by side: one compiles on a core, and one computes.
$(PACKAGE): $(DEPENDENCIES) setup.py $(shell find kernels/native -name '*.[ch]')
	@echo "setup 4/4: compiling the package, and converting the default model's weights"
	@$(BIN)/python -m engine.model.weights > /dev/null & $(INSTALL) --package && wait $$!
	@touch $@

$(TOOLS): $(PACKAGE)
	@$(INSTALL) bench cluster dev gpu otel
	@touch $@
