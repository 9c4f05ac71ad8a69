# make demo        installs into .venv and runs the quickstart sweep on the CPU
# make demo-llm    trains SmolLM2-135M on one-digit additions, ten minutes on two CPU cores
# make test        installs what tests need besides, and runs all but those of the targets below
# make check       formatting, rules, and the quick tests of the folders that you changed: under a minute
# make test-fast   the tests that take seconds, for daily work
# make browser     what the tests of the report in a browser need; without it they are skipped
# make test-faults kills what a sweep is made of, fills its disk, takes MLflow away, damages its files: eight minutes
# make test-vllm   installs vLLM for the CPU into .venv-vllm and runs the tests that need it
# make test-llm    fetches SmolLM2-135M (98 MB) once and runs the tests on it
# make test-gpu    the tests that need a GPU, on one; imports neither Ray, Optuna, MLflow nor datasets
# make first-contact  the first hour on a machine with GPUs, part after part, into doctor-report/ (docs/guides/gpu.md)
# make chaos       kills what a sweep is made of at random and compares its end (docs/development/faults.md); SEED=0 FAULTS=20 KILLS=200
# make test-recipes  installs verl, OpenRLHF, SkyRL and Tinker's cookbook into .venv-recipes and reads the recipes with their parsers
# make test-cluster  types docs/guides/cluster.md on three machines made of namespaces, and runs Slurm's job where Slurm is
# make install-gpu installs with vLLM, for machines with GPUs (docs/guides/gpu.md); make resolve-gpu only tries it
# make docs        builds the site of docs/ into build/docs; a broken link or any other warning is an error
# make lint        formatting, rules, types, and which package may import which
PYTHON ?= python3
export PYTHON
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
DOCS_STAMP := $(VENV)/.installed-docs

VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed

.PHONY: demo demo-llm check test test-fast test-faults test-llm test-vllm test-gpu first-contact test-cluster chaos lint docs install dev install-vllm install-gpu resolve-gpu lock-gpu browser clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@./install.sh $(VENV) fit -c constraints.txt -e '.[all]'
	@touch $@

# What tests and `make lint` need besides.
dev: $(DEV_STAMP)

$(DEV_STAMP): pyproject.toml constraints.txt
	@./install.sh $(VENV) fit -c constraints.txt -e '.[dev]'
	@touch $(STAMP) $@

# A name with the time, so that it can be run again.
demo: install
	$(BIN)/sweep run search_spaces/quickstart.yaml --name demo-$$(date +%Y%m%d-%H%M%S)
	@echo "To type such commands yourself, first: source $(BIN)/activate     then e.g. trainer run tiny_kk"

demo-llm: install
	$(BIN)/trainer run smollm2_addition --name demo-llm-$$(date +%Y%m%d-%H%M%S)

# Three processes on two cores, a file of tests in one of them: tests of sweeps wait for processes and leave a core idle.
# The longest files come first (tests/conftest.py): a long file at the end would keep the other processes waiting.
IN_THREE := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations=20
test: dev
	$(IN_THREE) --ignore tests/faults

test-faults: dev
	$(IN_THREE) tests/faults

check: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -m "not slow and not llm and not vllm and not gpu" -n auto $$($(BIN)/python -m tests.changed)

test-fast: dev
	$(BIN)/python -m pytest -m "not slow and not llm" -n auto

test-llm: dev
	$(BIN)/python -m pytest --durations=20 -m "llm and not vllm" tests/llm tests/sweep/test_search_spaces.py

# The report is tested in a real browser: the system's Chromium, or the one playwright brings. Playwright's own driver
# needs libatomic1. Without them the tests in a browser are skipped, for whoever cannot install packages.
browser: dev
	@if command -v chromium >/dev/null 2>&1 && $(BIN)/playwright --version >/dev/null 2>&1; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null 2>&1; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium libatomic1 >/dev/null; \
	else \
		$(BIN)/playwright install chromium || echo "the tests in a browser need the packages chromium and libatomic1"; \
	fi

install-vllm: $(VLLM_STAMP)

# torch first and with its dependencies: where it is a CUDA build, the lock does not list its libraries. Triton beside
# the rest, which would take it for a sign of a GPU: one test interprets kernels by it. It is the one that torch 2.13 brings.
$(VLLM_STAMP): constraints-vllm.txt pyproject.toml
	@./install.sh $(VLLM_VENV) fit -c constraints-vllm.txt torch
	@./install.sh $(VLLM_VENV) index --no-deps -r constraints-vllm.txt -e .
	@./install.sh $(VLLM_VENV) index --no-deps --target $(VLLM_VENV)/triton triton==3.7.1
	@touch $@

# One thread, on any core: vLLM's CPU kernels collapse when several threads share a busy core, and each engine would bind
# to the first.
test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind $(VLLM_VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=20 -m vllm \
		tests/trainer/rollouts tests/gpu tests/llm

# The trainers without their dependencies: they ask for different versions of the same packages, and for GPU kernels.
# Their parsers need none of those.
RECIPES_VENV := .venv-recipes
RECIPES_STAMP := $(RECIPES_VENV)/.installed
$(RECIPES_STAMP): tests/recipes/packages.txt tests/recipes/trainers.txt pyproject.toml
	@./install.sh $(RECIPES_VENV) fit -r tests/recipes/packages.txt
	@./install.sh $(RECIPES_VENV) index --no-deps -r tests/recipes/trainers.txt -e .
	@touch $@

.PHONY: test-recipes
test-recipes: $(RECIPES_STAMP)
	$(RECIPES_VENV)/bin/python -m pytest -o addopts="-rs" tests/recipes tests/trainer/integrations/test_verl.py

# With the environment of install-gpu, else with any Python that has torch, transformers, accelerate and pytest. The
# options of pyproject.toml ask for plugins that may be missing there.
test-gpu:
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); \
		$$python -m pytest -o addopts="-rs -s" -m gpu tests/gpu

# All parts run even if one fails; PARTS="driver vllm" runs some.
first-contact:
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); \
		$$python -m tests.first_contact $(PARTS)

SEED := 0
FAULTS := 20
KILLS := 200
chaos: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.chaos --seed $(SEED) --faults $(FAULTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.kills --seed $(SEED) --kills $(KILLS)

# Minutes, most of them to start servers; for root, else in a user namespace.
test-cluster: dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'mlflow[auth]'
	unshare=; test "$$(id -u)" = 0 || unshare="unshare --user --map-root-user"; \
		$$unshare $(BIN)/python -m pytest -rP tests/cluster/scenarios.py tests/cluster/slurm.py

install-gpu:
	@./install.sh $(VENV) index -c constraints-gpu.txt -e '.[vllm,dev]'
	@touch $(STAMP) $(DEV_STAMP)

# For a machine with GPUs, on any machine: downloads nothing but metadata.
GPU_PYTHONS := 3.11 3.12 3.13 3.14
# glibc 2.31: llguidance, which vLLM requires, has no wheel for 2.28. DeepSpeed is only there as source.
GPU_PLATFORM := --only-binary :all: --no-binary deepspeed --python-platform x86_64-manylinux_2_31 --python-version
resolve-gpu: dev
	$(BIN)/uv pip install --dry-run --reinstall --python $(BIN)/python $(GPU_PLATFORM) 3.11 -c constraints-gpu.txt '.[vllm,dev]' \
		2>&1 | tail -n +2 | sed -n '1p;/+ \(torch\|vllm\|transformers\|deepspeed\|fastapi\|apache-tvm-ffi\)==/p'
	@for python in $(GPU_PYTHONS); do \
		$(BIN)/uv pip compile --quiet --no-header --no-annotate $(GPU_PLATFORM) $$python \
			--extra vllm --extra dev -c constraints-gpu.txt pyproject.toml >/dev/null || exit 1; \
		echo "resolves for Python $$python"; \
	done

# Moves everything to its newest version; to add only what is missing: make lock-gpu LOCK_GPU='-c constraints-gpu.txt'
lock-gpu: dev
	head -2 constraints-gpu.txt > .constraints-gpu.new
	$(BIN)/uv pip compile --quiet --no-header --no-annotate $(GPU_PLATFORM) 3.11 --extra vllm --extra dev $(LOCK_GPU) \
		pyproject.toml >> .constraints-gpu.new
	mv .constraints-gpu.new constraints-gpu.txt

$(DOCS_STAMP): pyproject.toml constraints.txt
	@./install.sh $(VENV) fit -c constraints.txt -e '.[all,docs]'
	@touch $(STAMP) $@

docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs . build/docs
	@echo "documentation: build/docs/docs/index.html"

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 .  # every text file is opened with its encoding
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VLLM_VENV) .venv-recipes build .pytest_cache .mypy_cache .ruff_cache *.egg-info
