# make            install, run the tour (config/config.yaml), write the report, print what came out
# make planted    the same for more experiments of each domain, small, on generated data with known (planted) answers
# make paper      the same for the paper's config
# make test       install, run the quick tests (tests/unit, tests/contract); make test-all: all tests; make lint: style and types
# make test-slurm start a SLURM of one node on this machine (root; Debian's slurm-wlm and munge), run the tests that need it, end it
# make site       build the documentation as a site into site/; make dist: build the packages into dist/ and check them
# make clean      remove what was installed and cached; results/ and data/ stay
# With CONFIG='config/paper.yaml config/ablations/neumann-terms.yaml' another config, with CORES=2 fewer cores.

PYTHON ?= python3
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
CONFIG ?= config/config.yaml

BIN := .venv/bin
INSTALLED := .venv/installed
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) --configfile $(CONFIG)

# Threads that wait must not spin: jobs run side by side.
export OMP_WAIT_POLICY = passive
# Modules are compiled when they are first imported; the installation would compile all of each package.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := workflow
.PHONY: workflow planted paper test test-slow test-all test-slurm lint site dist install clean

workflow: $(INSTALLED)
	$(SNAKEMAKE) --quiet host reason rules
	@results=$$($(BIN)/metapt check --configfile $(CONFIG)) && results=$${results##*results: } && \
	if [ ! $$results/report.html -nt $$results/headline.md ]; then $(SNAKEMAKE) --quiet all --report $$results/report.html || exit; fi; \
	$(BIN)/metapt summary $$results

planted paper:
	$(MAKE) workflow CONFIG=config/$@.yaml

# By file, since a worker runs a tiny workflow once for all tests of a file; in their order, since those that take longest
# are in the first folders. By number of tests, one worker would wait for the other at the end.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(CORES) --dist loadfile --no-loadscope-reorder

test: $(INSTALLED)
	$(PYTEST) tests/contract tests/unit src -m "not slow" --hypothesis-profile quick

# What the target test leaves out, or tries few examples of.
test-slow: $(INSTALLED)
	$(PYTEST) tests -m "slow or hypothesis"

test-all: test test-slow
	@if [ "$$(id -u)" = 0 ] && type munged slurmctld slurmd >/dev/null 2>&1 && [ ! -e /etc/slurm/slurm.conf ]; then \
	$(MAKE) test-slurm; else echo "SLURM can't start here: make test-slurm says what it needs"; fi

test-slurm: $(INSTALLED)
	@$(BIN)/python -c 'import snakemake_executor_plugin_slurm' 2>/dev/null || \
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[workflow,dev,slurm]'
	@folder=$$(mktemp -d) && trap "tests/system/slurm/single_node.sh down $$folder; rm -rf $$folder" EXIT && \
	tests/system/slurm/single_node.sh up $$folder && $(BIN)/pytest --numprocesses 4 --durations=7 tests/system/slurm/test_slurm.py

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check workflow
	$(BIN)/metapt docs --check

# Extras that are installed when they are needed first.
WITH_EXTRA = $(BIN)/python -m pip install --no-compile --quiet --constraint constraints.txt --editable

site: $(INSTALLED)
	@$(BIN)/python -c 'import material, mkdocstrings, latex2mathml' 2>/dev/null || $(WITH_EXTRA) '.[workflow,dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! find site -name '*.py' -o -name '*.pyc' | grep . || { echo "the site has code among its files"; exit 1; }

dist: $(INSTALLED)
	@$(BIN)/python -c 'import build, twine' 2>/dev/null || $(WITH_EXTRA) '.[workflow,dev,release]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "metapt needs Python 3.11 or later; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable '.[workflow,dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
