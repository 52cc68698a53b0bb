# Every target works on a fresh clone: it installs what it needs first, and quickly when nothing
# changed. PYTHON is the interpreter (3.11 or newer) of the environment in .venv/.

PYTHON ?= $(shell .ci/python)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help compiled install run test unit check bench demo proto spark dev-tools peers clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# Stamps name what is installed; pyproject.toml is all that can change it.
# What ensurepip brings besides pip is of no use at run time.
$(BIN)/python:
	$(or $(PYTHON),$(error no interpreter)) -m venv $(VENV)
	@$(BIN)/python -m pip --quiet uninstall --yes setuptools 2>/dev/null || true

$(VENV)/.default: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[speed]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.default
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.spark: pyproject.toml $(VENV)/.default
	$(PIP) -e '.[spark,demo]'
	@touch $@

# All of them at once: one resolution instead of three.
$(VENV)/.all: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev,spark,demo]'
	@touch $(VENV)/.default
	@touch $(VENV)/.dev $(VENV)/.spark $@

# mypyc, where there is a C compiler; PURE=1: none. The same source runs either way.
compiled: $(VENV)/.default
	@$(BIN)/python .ci/compile

install: $(VENV)/.default compiled ## .venv with the default set; hot modules compiled

run: $(VENV)/.default ## name server, store and gateway in one process, on loopback
	@$(BIN)/python .ci/compile --fresh
	$(BIN)/tidegate up

dev-tools: $(VENV)/.dev

# Peers of the tests and benches: installed where we may (root on Debian), named where we may not.
peers:
	@.ci/peers

# The sources are tested while the same modules are compiled: either keeps one core busy. What follows
# waits for other programs half of the time: two files at a time.
test: $(VENV)/.all peers ## everything: unit, real clients, Java, Spark
	$(BIN)/python .ci/compile & built=$$!; \
	PURE=1 $(BIN)/python -m pytest -m "not client and not java and not bench" $(PYTEST) \
		tests/protocols tests/store tests/gateway/test_pipeline*.py \
		tests/gateway/test_deliveries.py tests/gateway/test_kinds.py; tested=$$?; \
	wait $$built && exit $$tested
	$(BIN)/python -m pytest -m "not bench" -n 2 --dist loadfile \
		--no-loadscope-reorder $(PYTEST)

unit: dev-tools compiled ## what needs no other program
	$(BIN)/python -m pytest -m "not client and not java and not spark and not bench" \
		-n 2 --dist loadfile $(PYTEST)

check: dev-tools ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: dev-tools peers compiled ## one table and bench.json, peers in the same run
	$(BIN)/python -m tests.bench $(BENCH)

demo: $(VENV)/.all peers compiled ## real readings through the whole system, checked
	$(BIN)/python -m tests.demo

spark: $(VENV)/.spark ## install what the Spark jobs need

proto: dev-tools ## generate protocols/grpc/v2 from apache/rocketmq-apis
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		protocols/grpc/v2/definition.proto protocols/grpc/v2/service.proto

clean: ## remove the environment and everything built
	rm -rf $(VENV) .venv-* build dist *.egg-info
