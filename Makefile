# The two commands of the README are `make run` and `make test`; both do all set-up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long lint format types bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install Slipstream with its test tools
$(STAMP): pyproject.toml setup.py $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h)
	@echo "==> creating $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> installing Slipstream and its dependencies (torch is the large one)"
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[test]'
	@touch $@

run: setup ## fetch the model, start every service, answer one prompt
	@$(BIN)/slipstream run

test: setup ## every test but the slow ones, on real NATS and the real model
	@$(BIN)/slipstream model pull smollm2-135m
	@$(BIN)/slipstream model pack smollm2-135m --format float32
	@$(BIN)/slipstream model pack smollm2-135m --format int8
	@$(BIN)/pytest

test-long: setup ## the slow tests too
	@$(BIN)/slipstream model pull smollm2-135m
	@$(BIN)/slipstream model pack smollm2-135m --format float32
	@$(BIN)/slipstream model pack smollm2-135m --format int8
	@$(BIN)/pytest -m 'slow or not slow' --timeout 600

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# mypy is blind to the package-dir mapping (and misses errors silently), hence the links.
types: setup ## mypy, strict
	@mkdir -p .types/slipstream
	@for part in kernels shared services; do ln -sfn ../../$$part .types/slipstream/$$part; done
	@MYPYPATH=.types $(BIN)/mypy --explicit-package-bases --namespace-packages -p slipstream

clean: ## remove what the targets above made
	rm -rf $(VENV) .types .pytest_cache .mypy_cache .ruff_cache build *.egg-info
