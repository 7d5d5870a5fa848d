# Works from any folder: make -C <clone> <target>, or make -f <clone>/Makefile <target>.
ROOT := $(shell cd "$$(dirname '$(strip $(MAKEFILE_LIST))')" && pwd -P)
RUN := cd "$(ROOT)" &&
PY := .venv/bin/python

# Spark starts its Python workers with this.
export PYSPARK_PYTHON := $(ROOT)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

ARGUMENTS ?=

.PHONY: help demo test test-faults test-long lint format bench chaos fuzz clean java environment servers
# One after the other, also under -j: two Spark sessions at once only slow each other down.
.NOTPARALLEL:
.DEFAULT_GOAL := help

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' "$(ROOT)/Makefile" | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo '  ARGUMENTS="..." is passed on: make test ARGUMENTS="-k ledger"'

demo: java environment archive ## kill a job at the worst instants and count: about a minute
	@$(RUN) .venv/bin/assent demo $(ARGUMENTS)

test: java environment servers archive ## all tests but the long fault matrices
	@$(RUN) $(PY) -m pytest -m "not faults" $(ARGUMENTS)

test-faults: java environment servers archive ## the long fault matrices
	@$(RUN) $(PY) -m pytest -m "faults and not long" $(ARGUMENTS)

test-long: java environment servers archive ## the rest of the fault matrices: every sink in every one
	@$(RUN) $(PY) -m pytest -m long $(ARGUMENTS)

chaos: java environment servers archive ## faults by the hundred: ARGUMENTS="--sink all --faults 1000 --seed 1"
	@$(RUN) $(PY) -m assent.testing.chaos $(ARGUMENTS)

fuzz: environment ## the parsers, by what code inputs reach (needs atheris): ARGUMENTS="--seconds 60"
	@$(RUN) $(PY) -m tests.fuzz $(ARGUMENTS)

lint: environment ## ruff and mypy
	@$(RUN) $(PY) -m ruff check .
	@$(RUN) $(PY) -m ruff format --check .
	@$(RUN) $(PY) -m mypy

format: environment ## put the code into shape
	@$(RUN) $(PY) -m ruff check --fix .
	@$(RUN) $(PY) -m ruff format .

bench: java environment servers ## the benchmarks: hours; ARGUMENTS="--quick" shows that they work
	@$(RUN) $(PY) -m bench $(ARGUMENTS)

clean: ## remove the environment, caches and builds
	@$(RUN) rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist \
	    artifacts metastore_db spark-warehouse derby.log
	@$(RUN) find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@"$(ROOT)/tools/environment" java

environment:
	@"$(ROOT)/tools/environment" python

# What Spark loads at every start, kept: made once.
archive: environment
	@$(RUN) $(PY) -m assent.testing.archive

# Those of the system, and those that are fetched, all of them at once.
servers: environment
	@"$(ROOT)/tools/environment" servers
	@$(RUN) $(PY) -m assent.testing.fetch
