# Everything a developer or a newcomer runs. Needs Python 3.11-3.14, make and bash; nothing else.
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
export VENV
# Where images set this, every process of the tests would compile Airflow, pandas and Spark's Python again.
unexport PYTHONDONTWRITEBYTECODE
# Since Python 3.12 the interpreter itself tells which lines ran, which costs less than a trace function.
COVERAGE_CORE = $(shell $(PY) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
.PHONY: help venv venv-demo demo ui test test-compat soak lint format bench docs screenshots clean

help:            ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

venv:            ## build .venv with all tools (reused while pyproject.toml and constraints.txt stay the same)
	@scripts/venv dev

venv-demo:
	@scripts/venv demo

demo: venv-demo  ## the whole story, end to end, on this machine
	@$(PY) scripts/demo.py

ui: venv-demo    ## Airflow's UI and the job pages with everything in place; DAGS=folder, CONFIG=server.toml, ROWS=n
	@$(PY) scripts/ui.py

test: lint       ## lint, and all tests but the long ones (make soak), with their coverage; what CI runs
	@COVERAGE_CORE=$(COVERAGE_CORE) $(PY) -m pytest tests -n 3 --dist loadscope --no-loadscope-reorder --cov-report= --cov

soak: venv       ## the long runs: kills, random histories, deployments
	@HYPOTHESIS_PROFILE=soak $(PY) -m pytest tests -m "soak or not soak" --timeout 3600

test-compat:     ## the Airflow layer's tests on Airflow 3.2, in a second venv
	@scripts/compat

lint: venv       ## ruff, mypy, import rules and codespell
	@$(PY) -m ruff check . && $(PY) -m ruff format --check --quiet . && $(PY) -m mypy && $(PY) -m codespell_lib
	@$(VENV)/bin/lint-imports --no-logo

format: venv     ## let ruff format the code
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .

bench: venv      ## every benchmark, printed as ratios
	@scripts/venv bench
	@for file in benchmarks/*.py; do echo "== $$file"; $(PY) $$file || exit 1; done

docs:            ## build the documentation into site/
	@scripts/venv docs
	@$(PY) -m mkdocs build --strict

screenshots: venv ## take the pictures of README and documentation anew, from a real run; needs a Chromium
	@$(PY) scripts/screenshots.py

clean:           ## remove everything that was built
	rm -rf $(VENV) .demo .ui build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
