# make setup | demo | test | check | bench | simulate | fmt | docs     (everything lives in .venv; nothing else is touched)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MINUTES ?= 10

.PHONY: setup demo test check audit bench fmt docs soak simulate ledger clean

setup: $(STAMP)

$(STAMP): pyproject.toml $(wildcard accelerator/*.py accelerator/*.toml accelerator/src/orbitmq_accelerator/*.[hp]*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[test]'
	@if command -v cc >/dev/null && $(BIN)/python -m pip install --quiet --quiet ./accelerator >$(VENV)/accelerator.log 2>&1; \
	then :; else echo "the accelerator is not built (no C compiler, or see $(VENV)/accelerator.log): all goes on in Python"; fi
	@$(BIN)/python -m orbitmq.spark.java_runtime >/dev/null # Spark's: fetched if this machine has no Java
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

# Nearly every test talks to real servers over real sockets. One that fails is tried once more and shown as RERUN, so that a machine
# which stood still for seconds is told from a defect; a ledger of promises (tests/marks.py) is never tried twice.
test: check
	@$(BIN)/python -m tests.spark_java
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --reruns 1

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.secret_scan
	@$(BIN)/python -m tests.dependency_audit # warns; `make audit` stops at what it finds

audit: setup
	@$(BIN)/python -m tests.dependency_audit --strict

bench: setup
	@$(BIN)/python -m benchmarks

ledger: setup # five minutes of mixed load with consumers coming and going: sent = received, by ledger
	@ORBITMQ_LEDGER_MINUTES=5 $(BIN)/python -m pytest -n 0 -s tests/broker/test_ledger.py

soak: setup # MINUTES=60 for an hour; the report goes to build/soak-report.md
	@$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

# One schedule of faults for each seed, a few hundred a minute: make simulate SEEDS=5000-9999
SEEDS ?= 0-999
simulate: setup
	@ORBITMQ_ACCELERATOR=0 $(BIN)/python -m tests.simulation --seeds $(SEEDS)

fmt: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup
	@PYTHONPATH=. $(BIN)/python -m tests.website

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
