# `make run` does the main job and `make test` passes the tests, from a fresh clone and with no other step.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run test lint format constraints clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed-run
	$(VENV)/bin/sp-profile run demo

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

format: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The exact versions that the tests ran with.
constraints: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pip freeze --exclude sp-profiler --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' > constraints.txt

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[run]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[run,dev]'
	touch $@ $(VENV)/.installed-run
