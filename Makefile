# `make run` does the main job and `make test` passes the tests, from a fresh clone and with no other step.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run run-long-context test test-hta lint format constraints clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed-run
	$(VENV)/bin/sp-profile run demo

run-long-context: $(VENV)/.installed-run
	$(VENV)/bin/sp-profile run demo-long-context

# Two at a time: more would not be faster, since tests that start ranks run one by one (tests/conftest.py).
test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

# HTA has needs of its own (an older pandas, jupyterlab), so it gets an environment of its own.
test-hta: $(VENV)-hta/.installed
	$(VENV)-hta/bin/python -m pytest tests/test_interop_hta.py

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

format: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The exact versions that CI takes, HTA's included: the newest that pyproject.toml allows today.
constraints:
	rm -rf $(VENV)-constraints
	$(PYTHON) -m venv $(VENV)-constraints
	$(VENV)-constraints/bin/python -m pip install --quiet --editable '.[run,dev,dashboard,cluster,remote,hta]'
	$(VENV)-constraints/bin/python -m pip freeze --exclude sp-profiler --exclude-editable \
		| grep -v '^pip==' | sed 's/+cpu$$//' > constraints.txt
	rm -rf $(VENV)-constraints

clean:
	rm -rf $(VENV) $(VENV)-hta build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The compiled decoder, where a C++ compiler is. Without it everything works, slower.
$(VENV)/.installed-native: $(wildcard native/*.* native/src/* native/sp_profiler_native/*.py) | $(VENV)/bin/python
	@if command -v c++ >/dev/null; then $(PIP) ./native || echo "the compiled decoder was not built: traces are read by the Python one"; \
	else echo "no C++ compiler: traces are read by the Python decoder"; fi
	touch $@

$(VENV)/.installed-run: pyproject.toml constraints.txt $(VENV)/.installed-native | $(VENV)/bin/python
	$(PIP) --editable '.[run]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/.installed-native | $(VENV)/bin/python
	$(PIP) --editable '.[run,dev,dashboard,cluster,remote]'
	touch $@ $(VENV)/.installed-run

$(VENV)-hta/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-hta
	$(VENV)-hta/bin/python -m pip --disable-pip-version-check install --quiet \
		--constraint constraints.txt --editable '.[hta]' pytest pytest-timeout hypothesis
	touch $@
