# The two commands of the README are `make run` and `make test`; both do all set-up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long test-clients chaos soak fuzz sanitize sanitize-threads audit lint format types bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## create .venv and install Slipstream with its test tools
$(STAMP): pyproject.toml setup.py $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h)
	@echo "==> creating $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> installing Slipstream and its dependencies (torch is the large one)"
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[test]'
	@touch $@

# Packed before the tests, which have deadlines: two take a minute the first time.
FORMATS := float32 bf16 int8 int4

run: setup ## fetch the model, start every service, answer one prompt
	@$(BIN)/slipstream run

test: setup ## every test but the slow ones, on real NATS and the real model
	@$(BIN)/slipstream model pull smollm2-135m
	@set -e; for format in $(FORMATS); do \
		$(BIN)/slipstream model pack smollm2-135m --format $$format; done
	@$(BIN)/pytest tests/unit tests/wire tests/fuzz tests/integration --numprocesses 2
	@$(BIN)/pytest tests/end_to_end tests/chaos

test-long: setup ## the slow tests too
	@$(BIN)/slipstream model pull smollm2-135m
	@set -e; for format in $(FORMATS); do \
		$(BIN)/slipstream model pack smollm2-135m --format $$format; done
	@$(BIN)/pytest -m 'not clients' --timeout 600

CLIENTS := .venv-clients
$(CLIENTS)/.installed: tests/clients/requirements.txt
	@echo "==> installing other people's clients into $(CLIENTS) (a gigabyte)"
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

test-clients: setup $(CLIENTS)/.installed ## LiteLLM, LangChain, aiperf, genai-bench and a browser on the gateway (minutes)
	@$(BIN)/slipstream model pull smollm2-135m
	@$(BIN)/slipstream model pack smollm2-135m --format int8
	@$(BIN)/pytest -m clients --timeout 300

chaos: setup ## workers frozen and killed under load, at full length (minutes)
	@$(BIN)/pytest tests/chaos -m 'slow or not slow' --timeout 900

FUZZ_INPUTS := 1000000
fuzz: setup ## damaged input for every decoder, and hostile messages for the books (minutes)
	@PYTHONPATH=tests $(BIN)/python -P -m fuzz --inputs $(FUZZ_INPUTS) \
		--output build/fuzz.json --found build/fuzz
	@SLIPSTREAM_FUZZ_EXAMPLES=1000 $(BIN)/pytest -m 'slow or not slow' --timeout 900 tests/fuzz \
		tests/unit/services/kv_manager/test_hostile_messages.py \
		tests/unit/services/scheduler/test_request_interleavings.py tests/integration/test_hostile_bytes.py

SOAK_MINUTES := 60
SOAK_ENGINE := fake
SOAK_JSON :=
soak: setup ## mixed load for an hour, in which nothing may grow (SOAK_MINUTES, SOAK_ENGINE=real, SOAK_JSON=FILE)
	@SOAK_MINUTES=$(SOAK_MINUTES) SOAK_ENGINE=$(SOAK_ENGINE) SOAK_JSON=$(SOAK_JSON) \
		$(BIN)/pytest tests/chaos/test_soak.py -m slow -s

# The kernels once more, built for a sanitizer, and their tests. Its reports go straight to the
# terminal, so pytest may neither capture them nor handle signals; it watches `malloc`, so Python must
# use that for everything. Leaks are not looked for: Python ends without giving all of it back.
sanitize: setup ## the kernel tests under AddressSanitizer and UndefinedBehaviorSanitizer
sanitize: SANITIZERS := address,undefined,float-cast-overflow
sanitize: RUNTIME := libasan.so
sanitize-threads: setup ## the kernel tests under ThreadSanitizer
sanitize-threads: SANITIZERS := thread
sanitize-threads: RUNTIME := libtsan.so
sanitize sanitize-threads:
	@echo "==> building the kernels for sanitizers (minutes, where something changed)"
	@SLIPSTREAM_SANITIZE=$(SANITIZERS) $(BIN)/python setup.py -q build_ext \
		--build-lib build/$@ --build-temp build/$@/objects
	@ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:handle_abort=1 TSAN_OPTIONS=halt_on_error=1 \
		UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc \
		LD_PRELOAD="$$($(CXX) -print-file-name=$(RUNTIME)) $$($(CXX) -print-file-name=libstdc++.so)" \
		SLIPSTREAM_KERNELS_DIR=build/$@/slipstream/kernels/cpu \
		$(BIN)/pytest tests/unit/kernels/cpu --hypothesis-profile sanitize --timeout 600 \
		--capture sys -p no:faulthandler

AUDIT := .venv-audit
$(AUDIT)/.installed:
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --disable-pip-version-check 'pip-audit>=2.9' 'cyclonedx-bom>=7'
	@touch $@

audit: setup $(AUDIT)/.installed ## known vulnerabilities of what is installed, and its list (CycloneDX), into build/
	@mkdir -p build
	@$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file build/sbom.cdx.json $(BIN)/python
	@echo "==> build/sbom.cdx.json lists what is installed"
	@$(AUDIT)/bin/python .ci/audit.py $(BIN)/python build/audit.json

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# mypy is blind to the package-dir mapping (and misses errors silently), hence the links.
types: setup ## mypy, strict
	@mkdir -p .types/slipstream
	@for part in kernels shared services client; do ln -sfn ../../$$part .types/slipstream/$$part; done
	@MYPYPATH=.types $(BIN)/mypy --explicit-package-bases --namespace-packages -p slipstream

clean: ## remove what the targets above made
	rm -rf $(VENV) $(CLIENTS) $(AUDIT) .types .pytest_cache .mypy_cache .ruff_cache build *.egg-info
