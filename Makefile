# One word a purpose. `make` alone lists them. Needs Python 3.11 or 3.12 and pip; everything else goes into $(VENV).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
# Tests start hundreds of processes. Where modules may not be kept compiled, each compiles some 250 of ours: 1 s of a core.
unexport PYTHONDONTWRITEBYTECODE

VENV    ?= .venv
# Which torch, and more words for its installation alone (README, "About torch"). A choice is remembered in $(VENV);
# without one it is the version everything is tested with.
TORCH   ?= $(or $(shell cat $(VENV)/torch-choice 2>/dev/null),$(shell grep -E '^torch==' constraints.txt))
TORCH_ARGS ?=
# More words for every pip call, such as --no-cache-dir.
PIP_ARGS ?=
INPUT   ?=
RUN_DIR ?=
RECIPE  ?= recipes/quickstart.yaml
# More words for pytest: make test PYTEST_ARGS='tests/data -x'
PYTEST_ARGS ?=
# Processes that share the tests, a file each at a time; 0 runs them in one. Several-rank tests start their own besides.
# Where nobody says, two, and three where slow tests are among them, which often wait: for Slurm, Ray, other ranks.
JOBS ?=
# More words for the faults that are planted: make mutants MUTANTS='--rooms data --count 20'
MUTANTS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := $(VENV)/constraints.txt
# A stamp for each step of the set-up: a step is done again only when what it was made from has changed.
# The torch stamp carries the version asked for, so that another TORCH= is another stamp.
TORCH_STAMP   := $(VENV)/.torch$(subst =,-,$(subst <,_,$(subst >,_,$(subst $() ,,$(TORCH)))))
RUNTIME_STAMP := $(VENV)/.runtime
DEV_STAMP     := $(VENV)/.dev
# nemo-toolkit cannot share an environment with the lightning of constraints.txt.
NEMO_VENV  ?= .venv-nemo
NEMO_STAMP := $(NEMO_VENV)/.nemo
NEMO_TESTS := tests/nemo tests/config tests/train tests/workflow tests/recipes tests/cli
# FBGEMM is made for one torch, and installed without what it and TorchRec ask for.
TORCHREC_VENV  ?= .venv-torchrec
TORCHREC_STAMP := $(TORCHREC_VENV)/.torchrec
OVERRIDES := $(if $(INPUT),"input=$(INPUT)") $(if $(RUN_DIR),"run_dir=$(RUN_DIR)")

.PHONY: help demo setup setup-dev test test-slow test-all soak mutants perf check fix clean torch setup-nemo test-nemo torchrec

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUNTIME_STAMP) ## from raw video to sampled video on this machine; INPUT=DIR takes your own videos, RUN_DIR=DIR another place
	@$(BIN)/nemo-vfm run $(RECIPE) $(OVERRIDES)

setup: $(RUNTIME_STAMP) ## only install what running needs
	@echo "Everything is in $(VENV). Next, type:  . $(BIN)/activate && nemo-vfm run quickstart --overlay smoke"
setup-dev: $(DEV_STAMP) ## install what testing and benchmarks need, too

# A test that hangs ends its process and with it the run: a process begun anew may be left waiting for ever by xdist.
# Two threads of torch in each of two processes wait for each other: a step took 15 s in place of 1.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n $(or $(JOBS),$(1)) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 -rs --durations=15 --durations-min=1
test: $(DEV_STAMP) ## every test but those below; ends with the seconds each folder took
	@$(call PYTEST,2) -m 'not slow and not cluster and not soak' $(PYTEST_ARGS)

test-slow: $(DEV_STAMP) ## what takes seconds: most recipes, whole benchmarks, installations, kills; Slurm, Ray and several ranks
	@$(call PYTEST,3) -m '(slow or cluster) and not soak' $(PYTEST_ARGS)

# To import all tests takes most of a minute; and while some wait, others compute.
test-all: $(DEV_STAMP) ## both in one run, as .ci/run has it
	@$(call PYTEST,3) -m 'not soak' $(PYTEST_ARGS)

soak: $(DEV_STAMP) ## the long version: more kills, more fuzz cases, every layout
	@$(BIN)/pytest -m 'soak or hypothesis' --hypothesis-profile=soak -o faulthandler_timeout=3600 --durations=30 $(PYTEST_ARGS)

mutants: $(DEV_STAMP) ## plant 100 faults, one at a time, and list those that no test of their room sees (two hours)
	@$(BIN)/python -m tests.support.mutants $(MUTANTS)

perf: $(RUNTIME_STAMP) ## write docs/reference/performance.md anew: published figures beside what the performance model predicts
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/paper_figures.py --write

# nemo-toolkit holds lightning 2.4 and omegaconf 2.3, the oldest that setup.py allows: so the rooms that use them are
# tried here, too. The last result stands in docs/reference/support.md.
setup-nemo: $(NEMO_STAMP) ## an environment of its own with nemo-toolkit (2 GB)
test-nemo: $(NEMO_STAMP) ## NeMo's jobs, and our rooms at the oldest lightning and omegaconf
	@$(NEMO_VENV)/bin/python -m pytest -m 'not soak' -rs $(NEMO_TESTS) $(PYTEST_ARGS)

# The last result stands in docs/reference/support.md.
torchrec: $(TORCHREC_STAMP) ## embedding tables and jagged tensors against TorchRec and FBGEMM, and all Triton kernels, in an environment of their own (2 GB)
	@$(TORCHREC_VENV)/bin/python -m pytest -rs tests/torchrec $(PYTEST_ARGS)
	@TRITON_INTERPRET=1 $(TORCHREC_VENV)/bin/python -m pytest -rs tests/sparse/tables/test_triton_kernels.py tests/parallel/fp8/test_triton_casts.py $(PYTEST_ARGS)

# Every tool speaks, also after another has found something.
check: $(DEV_STAMP) ## format, lint, types, which room opens which door, Dockerfile, house rules
	@failed=; run() { echo "-- $$*"; "$(BIN)/$$@" || failed="$$failed $$1"; }; \
	run ruff format --check .; \
	run ruff check .; \
	run mypy; \
	run lint-imports --no-logo; \
	if test -x $(BIN)/hadolint; then run hadolint Dockerfile; else echo "-- no hadolint for this platform: tests/house looks at the Dockerfile"; fi; \
	run pytest tests/house $(PYTEST_ARGS); \
	if test -n "$$failed"; then echo "make check: something to do for:$$failed"; exit 1; fi; echo "make check: all is well"

fix: $(DEV_STAMP) ## let the machine format and correct what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove the environment and what builds and tools left; runs/ stays
	rm -rf $(VENV) $(NEMO_VENV) $(TORCHREC_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# The pip of Python 3.11 needs 75 s of a core to choose our packages, that of today 32 (2026-11).
# Some `python3.12` on the path is only a launcher that fails, and some Debian Pythons come without venv: so each
# candidate has to show what it can do, and the first that can is taken.
$(BIN)/python:
	@found=; for candidate in python3.11 python3.12 python3 python; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1; \
	  then found=$$candidate; break; fi; done; \
	if test -z "$$found"; then \
	  echo "No Python 3.11 or 3.12 with venv and pip was found on the PATH (looked for python3.11, python3.12, python3, python)."; \
	  echo "Install one, on Debian and Ubuntu: apt-get install python3.11 python3.11-venv; then run make again."; exit 1; fi; \
	echo "Making a virtual environment in $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)
	@$(PIP) install -q $(PIP_ARGS) --upgrade pip || echo "pip stays as it came with Python, which takes longer."

# torch first and alone: nothing that is installed later may then choose another one.
$(TORCH_STAMP): | $(BIN)/python
	@echo "Installing $(TORCH) (the largest download; minutes on a slow line)"
	@$(PIP) install $(PIP_ARGS) $(TORCH_ARGS) "$(TORCH)"
	@$(if $(filter file undefined,$(origin TORCH)),:,echo "$(TORCH)" > $(VENV)/torch-choice)
	@rm -f $(VENV)/.torch*; touch "$@"

# The tested pins, with the torch line replaced by the torch that is there.
$(CONSTRAINTS): constraints.txt $(TORCH_STAMP)
	@grep -v -E '^torch==' constraints.txt > $@
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> $@

torch: $(TORCH_STAMP)

$(NEMO_STAMP): setup.py constraints-nemo.txt
	@$(MAKE) --no-print-directory VENV=$(NEMO_VENV) torch
	@grep -v -E '^torch==' constraints-nemo.txt > $(NEMO_VENV)/constraints.txt
	@$(NEMO_VENV)/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
	  >> $(NEMO_VENV)/constraints.txt
	@echo "Installing nemo_vfm with nemo-toolkit, at the tested versions (several minutes)"
	@$(NEMO_VENV)/bin/python -m pip --disable-pip-version-check install -q $(PIP_ARGS) -c $(NEMO_VENV)/constraints.txt \
	  -e '.[nemo]' pytest hypothesis jsonschema
	@touch $@

$(TORCHREC_STAMP): setup.py constraints.txt constraints-torchrec.txt
	@$(MAKE) --no-print-directory VENV=$(TORCHREC_VENV) $(TORCHREC_VENV)/constraints.txt
	@echo "Installing nemo_vfm with TorchRec and FBGEMM, at the tested versions (a minute or two)"
	@$(TORCHREC_VENV)/bin/python -m pip --disable-pip-version-check install -q $(PIP_ARGS) -c $(TORCHREC_VENV)/constraints.txt \
	  -e '.[recsys]' pytest hypothesis jsonschema tqdm
	@$(TORCHREC_VENV)/bin/python -m pip --disable-pip-version-check install -q $(PIP_ARGS) --no-deps -r constraints-torchrec.txt
	@touch $@

$(RUNTIME_STAMP): setup.py $(CONSTRAINTS)
	@echo "Installing nemo_vfm and what it runs on, at the tested versions (a minute or two)"
	@$(PIP) install -q $(PIP_ARGS) -c $(CONSTRAINTS) -e .
	@touch $@

# In one call with what it runs on: to choose the same packages twice takes half a minute.
$(DEV_STAMP): setup.py $(CONSTRAINTS)
	@echo "Installing nemo_vfm, what it runs on, the tools of the tests and the packages we compare with (two minutes)"
	@$(PIP) install -q $(PIP_ARGS) -c $(CONSTRAINTS) -e '.[dev]'
	@touch $(RUNTIME_STAMP) $@
