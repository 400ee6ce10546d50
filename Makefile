# The two commands of the README, each from nothing: `make report DRIVER=litert` and `make test`.
PYTHON ?= python3
DRIVER ?= reference
PROFILE ?= quick
VENV := .venv
BIN := $(VENV)/bin
comma := ,
# The runtime that a driver of ours needs besides the suite; a vendor's driver brings its own.
DRIVER_NAME := $(firstword $(subst $(comma), ,$(DRIVER)))
EXTRA := $(addprefix $(comma),$(filter litert,$(DRIVER_NAME)))

# Hundreds of processes start; each would compile the whole suite anew.
unexport PYTHONDONTWRITEBYTECODE

# Of `make nightly`: hours in all, of which fuzzing and random graphs get 0.4 each and stress the rest.
HOURS ?= 4
JOBS ?= 2
NIGHT := $(shell awk 'BEGIN { print int($(HOURS) * 60 * 0.4) }')

.PHONY: report test thorough check nightly clean

report: $(VENV)/.suite$(EXTRA)
	$(BIN)/python -m pytest --driver="$(DRIVER)" --profile=$(PROFILE) -q -n 2 --no-header --tb=no -rN

test: $(VENV)/.dev
	$(BIN)/python -m pytest tests -q -n 4 --dist=loadfile --no-loadscope-reorder -rs -m "not thorough"
	$(BIN)/python -m pytest conformance -q -n 3 --profile=ci --fail-poor --tb=short \
		--driver=reference,arithmetic=float32,order=blocked
	$(BIN)/python -m pytest random_graph -q -n 3 --profile=ci --fail-poor --tb=short \
		--driver=reference,arithmetic=float32,order=reversed
	$(BIN)/python -m pytest stress -q -n 2 --driver=reference --tb=short
	$(BIN)/python -m pytest random_graph/test_explore.py -q --hypothesis-profile=ci \
		--driver=reference,arithmetic=float32,order=reversed

thorough: $(VENV)/.dev
	$(BIN)/python -m pytest tests -q -n 4 --dist=loadfile --no-loadscope-reorder -rs -m thorough

# What is known is kept in runs/: the next night goes on from it, and fails for what is new alone.
nightly: $(VENV)/.suite$(EXTRA)
	failed=0; \
	$(BIN)/python -m fuzz --driver="$(DRIVER)" --for=$(NIGHT)m --jobs=$(JOBS) --seed=$$(date +%j) || failed=1; \
	$(BIN)/python -m random_graph --driver="$(DRIVER)" --mix=small --mix=large --for=$(NIGHT)m --jobs=$(JOBS) \
		--seed=$$(date +%j) || failed=1; \
	$(BIN)/python -m stress --driver="$(DRIVER)" --preset=night --seed=$$(date +%j) || failed=1; \
	for run in $$(ls -dt runs/*-fuzz-* runs/*-graphs-* runs/*-stress-* | head -3); do \
		$(BIN)/python -m reports $$run || failed=1; done; \
	$(BIN)/python -m reports history runs || failed=1; \
	exit $$failed

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m opset.export --check
	$(BIN)/python -m drivers._faults_page --check

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.suite: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[suite]"
	touch $@

$(VENV)/.suite$(comma)litert: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[suite,litert]"
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[suite,litert,dev]"
	touch $@

clean:
	rm -rf $(VENV) runs
