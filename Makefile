# Every target works on a fresh clone: it installs what it needs first, and quickly when nothing
# changed. PYTHON picks the interpreter (3.11 or newer) of the environment in .venv/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help install run test unit check bench demo proto spark dev-tools peers clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# Stamps name what is installed; pyproject.toml is all that can change it.
# What ensurepip brings besides pip is of no use at run time.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --quiet uninstall --yes setuptools 2>/dev/null || true

$(VENV)/.default: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.default
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.spark: pyproject.toml $(VENV)/.default
	$(PIP) -e '.[spark,demo]'
	@touch $@

install: $(VENV)/.default ## .venv with the default set

run: install ## name server, store and gateway in one process, on loopback
	$(BIN)/tidegate up

dev-tools: $(VENV)/.dev

# Peers of the tests and benches: installed where we may (root on Debian), named where we may not.
peers:
	@.ci/peers

test: dev-tools $(VENV)/.spark peers ## everything: unit, real clients, Java, Spark
	$(BIN)/python -m pytest -m "not bench" $(PYTEST)

unit: dev-tools ## what needs no other program; under a minute
	$(BIN)/python -m pytest -m "not client and not java and not spark and not bench" $(PYTEST)

check: dev-tools ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: dev-tools peers ## one table and bench.json, peers in the same run
	$(BIN)/python -m tests.bench $(BENCH)

demo: $(VENV)/.dev $(VENV)/.spark peers ## real readings through the whole system, checked
	$(BIN)/python -m tests.demo

spark: $(VENV)/.spark ## install what the Spark jobs need

proto: dev-tools ## generate protocols/grpc/v2 from apache/rocketmq-apis
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		protocols/grpc/v2/definition.proto protocols/grpc/v2/service.proto

clean: ## remove the environment and everything built
	rm -rf $(VENV) .venv-* build dist *.egg-info
