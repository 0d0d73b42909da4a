# Every target does its own set-up in .venv. TRITON= (empty) takes the newest triton.
# Options of the soak go into SOAK.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH ?= 2.13.0
TRITON ?=
WORKERS ?= 2
SGLANG ?= 0.5.23
GPU_PYTHON ?= python3
GPU_CHECK ?=
SOAK ?=
REPORT ?= build/report
TRAFFIC ?= --limit 1000 --pool-gib 20
COMPARE ?= scalar,batched,eager,static

AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo --non-interactive)
BROWSER := chromium chromium-driver fonts-dejavu-core

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTHON_STAMP := $(VENV)/.python
TORCH_STAMP := $(VENV)/.torch-$(TORCH)
TRITON_STAMP := $(VENV)/.triton-$(or $(TRITON),newest)
REQUIREMENTS := $(VENV)/requirements.txt
SGLANG_VENV := .venv-sglang
SGLANG_PIP := $(SGLANG_VENV)/bin/python -m pip --disable-pip-version-check --quiet
SGLANG_STAMP := $(SGLANG_VENV)/.sglang-$(SGLANG)-torch-$(TORCH)-triton-$(or $(TRITON),newest)
EDITABLE := --editable . --no-deps --no-build-isolation --config-settings editable_mode=strict

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test kernel-test lint types soak bench report report-test gpu-check clean
.PHONY: install-sglang test-sglang bench-sglang

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PYTHON_STAMP):
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch goes first and by exact version: an open range takes a CUDA build of several gigabytes.
$(TORCH_STAMP): $(PYTHON_STAMP)
	$(PIP) install torch==$(TORCH)
	@rm -f $(VENV)/.torch-* $(VENV)/.triton-*
	@touch $@

$(TRITON_STAMP): $(TORCH_STAMP)
	$(PIP) install $(if $(TRITON),triton==$(TRITON),--upgrade triton)
	@rm -f $(VENV)/.triton-*
	@touch $@

# Everything but torch and triton, so that their versions stay as chosen above.
$(REQUIREMENTS): pyproject.toml $(TRITON_STAMP)
	@$(BIN)/python -c 'import tomllib; \
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	wanted = sum(project["optional-dependencies"].values(), project["dependencies"]); \
	print(*sorted({w for w in wanted if not w.startswith(("torch", "triton"))}), sep="\n")' > $@
	$(PIP) install --requirement $@

# Repeated on every call: a strict editable install does not see new files.
install: $(REQUIREMENTS)
	$(PIP) install $(EDITABLE)

demo: install  ## replay an hour of generated chat traffic, every byte checked
	$(BIN)/python -m kvdefrag.perf replay

test: install  ## all tests: the Triton interpreter, then ahead-of-time compiles
	TRITON_INTERPRET=1 $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal --benchmark-disable
	TRITON_INTERPRET=0 $(BIN)/pytest tests/compiled --numprocesses $(WORKERS) --dist worksteal

kernel-test: install  ## the kernel tests alone, as CI runs them on an older TRITON=
	TRITON_INTERPRET=1 $(BIN)/pytest tests/kernels --numprocesses $(WORKERS) --dist worksteal
	TRITON_INTERPRET=0 $(BIN)/pytest tests/compiled --numprocesses $(WORKERS) --dist worksteal

lint: install  ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy, strict
	$(BIN)/mypy -p kvdefrag

soak: install  ## a million calls on a full arena, every byte checked
	$(BIN)/python -m tests.soak $(SOAK)

bench: install  ## measure the allocator beside its baselines; the record goes into REPORT=
	@mkdir -p $(REPORT)
	$(BIN)/python -m kvdefrag.perf bench --json $(REPORT)/bench.json

$(REPORT)/bench.json:
	$(MAKE) bench

report: install $(REPORT)/bench.json  ## draw benchmarks, replays and the results that are kept
	$(BIN)/python -m kvdefrag.perf replay $(TRAFFIC) --json $(REPORT)/replay.json
	$(BIN)/python -m kvdefrag.perf replay $(TRAFFIC) --compare $(COMPARE) \
	--json $(REPORT)/comparison.json
	$(BIN)/python -m kvdefrag.perf limits --json $(REPORT)/limits.json
	$(BIN)/python -m kvdefrag.perf report $(wildcard perf/results) $(REPORT) --out $(REPORT)/index.html

# Debian's browser where it can be installed; where not, the tests are skipped and say so.
report-test: install  ## the page of report in a headless Chromium; pictures in build/report-test
	@command -v chromedriver >/dev/null || { $(AS_ROOT) apt-get update --quiet --quiet && \
	$(AS_ROOT) apt-get install --quiet --quiet --yes --no-install-recommends $(BROWSER); } || \
	echo "no browser could be installed here"
	@mkdir -p build
	$(BIN)/pytest tests/perf/test_report_in_browser.py --basetemp build/report-test

# A virtual environment of its own: SGLang pins what it depends on.
$(SGLANG_STAMP): tests/sglang/requirements.txt
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_PIP) install torch==$(TORCH)
	$(SGLANG_PIP) install $(if $(TRITON),triton==$(TRITON),--upgrade triton)
	$(SGLANG_PIP) install --requirement tests/sglang/requirements.txt
	$(SGLANG_PIP) install --no-deps sglang==$(SGLANG)
	@rm -f $(SGLANG_VENV)/.sglang-*
	@touch $@

install-sglang: $(SGLANG_STAMP)
	$(SGLANG_PIP) install $(EDITABLE)

test-sglang: install-sglang  ## the plugin beside SGLang's own allocator, state and bytes compared
	TRITON_INTERPRET=1 $(SGLANG_VENV)/bin/pytest tests/sglang --numprocesses $(WORKERS) --dist worksteal

bench-sglang: install-sglang  ## host time of SGLang's flushes with and without the plugin
	$(SGLANG_VENV)/bin/pytest tests/sglang/bench_flush.py

# Installs nothing: it takes the torch and triton of GPU_PYTHON. Options go into GPU_CHECK.
gpu-check:  ## check and time the kernels on the GPU at hand
	PYTHONSAFEPATH=1 $(GPU_PYTHON) perf/gpu_check.py $(GPU_CHECK)

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(SGLANG_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
