# make setup | demo | test | check | bench | fmt | docs     (everything lives in .venv; nothing else is touched)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test check bench fmt docs soak clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[test]'
	@$(BIN)/python -m orbitmq.spark.java_runtime >/dev/null # Spark's: fetched if this machine has no Java
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

test: check
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup
	@$(BIN)/python -m benchmarks

soak: setup
	@$(BIN)/python -m tests.crash.soak

fmt: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup
	@$(BIN)/python -m tests.api_reference
	@$(BIN)/python -m tests.configuration_reference

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
