# `make run` does the main job and `make test` passes the tests, from a fresh clone and with no other step.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run run-long-context test test-hta fuzz lint format constraints clean
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

# The compiled decoder's scanner under libFuzzer (clang), then both decoders over what that found, FUZZ_S seconds
# each. Any finding fails, and lies in build/fuzz. Another seed, another way.
FUZZ := build/fuzz
FUZZ_S := 60
FUZZ_SEED := $(shell echo $$$$)
fuzz: $(FUZZ)/scan
	cd $(FUZZ) && ./scan -max_total_time=$(FUZZ_S) -seed=$(FUZZ_SEED) -timeout=10 -rss_limit_mb=2048 -max_len=4096 -dict=scan.dict \
		-print_final_stats=1 -verbosity=0 found seeds
	cd $(FUZZ) && $(CURDIR)/$(VENV)/bin/python $(CURDIR)/native/fuzz/both.py $(FUZZ_S) $(FUZZ_SEED) found seeds

# What material.py takes from the schema and the tests counts too, so that nothing falls behind them.
MATERIAL := native/fuzz/material.py tests/native_texts.py sp_profiler/trace/native.py sp_profiler/trace/schema.py
$(FUZZ)/scan: native/fuzz/scan.cpp $(MATERIAL) $(wildcard native/src/*.hpp) $(VENV)/.installed-dev
	$(VENV)/bin/python native/fuzz/material.py $(FUZZ)
	clang++ -std=c++17 -O2 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I$(FUZZ) $< -o $@

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

# The compiled decoder, where a C++ compiler is. Without it everything works, slower. One that was built from
# other sources is taken away first: it might read differently.
COMPILER := $(shell command -v c++ || command -v g++ || command -v clang++)
$(VENV)/.installed-native: $(wildcard native/*.* native/src/* native/sp_profiler_native/*.py) | $(VENV)/bin/python
	@$(VENV)/bin/python -m pip --quiet uninstall --yes sp-profiler-native 2>/dev/null
	@if [ -z "$(COMPILER)" ]; then echo "no C++ compiler: traces are read by the Python decoder"; \
	else $(PIP) ./native || echo "the compiled decoder was not built: traces are read by the Python one"; fi
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
