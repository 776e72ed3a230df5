# make demo, make test, make hostile, make fuzz, make faults, make soak: each does all set-up from a bare clone
# with Python 3.11 (or newer) and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test hostile fuzz faults soak lint clean

demo: $(VENV)/installed
	$(BIN)/bilateral demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not kills" --ignore tests/faults --ignore tests/fuzz

faults: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 tests/faults
	$(BIN)/python -m pytest -n 2 -m kills --ignore tests/faults --ignore tests/fuzz

# The same campaign for half an hour, by another schedule every time; the seed is printed.
soak: export BILATERAL_SOAK_SECONDS ?= 1800
soak: export BILATERAL_SOAK_SEED ?= $(shell date +%s)
soak: $(VENV)/installed-dev
	@echo "BILATERAL_SOAK_SEED=$$BILATERAL_SOAK_SEED"
	$(BIN)/python -m pytest tests/faults --timeout 0

# Hostile files, and some hundred damaged files of every format.
hostile: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 tests/fuzz

# The same for longer: BILATERAL_FUZZ_INPUTS damaged files of every format.
fuzz: $(VENV)/installed-dev
	cd tests/fuzz && ../../$(BIN)/python campaign.py --inputs $${BILATERAL_FUZZ_INPUTS:-5000}

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and pinned: without the pin pip would choose a build with gigabytes of CUDA packages.
$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo build dist
