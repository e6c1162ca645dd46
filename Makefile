# Everything starts here: `make demo` and `make test` each work first, on a machine with Python 3.11, g++ and make.
# What has been set up is remembered by stamps in .venv; a second call goes straight to the work.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CPP := $(wildcard csrc/*/*.cpp csrc/*/*.h tests/engine/*.cpp tests/engine/*.h)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# On a busy machine, threads that spin while they wait for each other make PyTorch ten times slower.
demo test test-distributed quick hunt-programs hunt-opinfo hunt-files hunt-faults hunt-tips: export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.PHONY: help demo test test-distributed quick lint format bench results build clean
.PHONY: hunt hunt-programs hunt-opinfo hunt-files hunt-faults hunt-tips

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: .venv/.built ## trains a small GPT plainly, then in half of its memory, and compares
	$(BIN)/python examples/demo.py

test: .venv/.built .venv/.dev lint ## everything: style, types, the engine's own tests (sanitizers too), all of pytest
	$(MAKE) --no-print-directory -j2 -O engine-test sanitize sanitize-threads SANITIZE_ROUNDS=10
	$(BIN)/python -m pytest

quick: .venv/.built .venv/.dev ## the tests that are not slow
	$(BIN)/python -m pytest -m "not slow"

test-distributed: .venv/.built .venv/.dev ## all programs of several ranks, in every way, on two and on four ranks
	$(BIN)/python -m pytest tests/ranks -m "slow or thorough"

lint: .venv/.dev ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: .venv/.dev ## puts style right where a tool can, and writes what is generated
	$(BIN)/python tools/surface.py
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

bench: .venv/.built .venv/.dev ## all benchmarks, with tables, pictures and JSON in results/ (four hours)
	@mkdir -p results
	$(BIN)/python benchmarks/training.py --json results/training.json --plot results/training.png
	$(BIN)/python benchmarks/overhead.py --json results/overhead.json
	$(BIN)/python benchmarks/floor.py --json results/floor.json
	$(BIN)/python benchmarks/scaling.py --json results/scaling.json
	$(BIN)/python benchmarks/simulator.py --json results/simulator.json
	$(BIN)/python benchmarks/planners.py --json results/planners.json
	$(BIN)/python benchmarks/swap.py --json results/swap.json
	$(BIN)/python benchmarks/distributed.py --json results/distributed.json
	$(BIN)/python benchmarks/at_scale.py --json results/at-scale.json

results: .venv/.built .venv/.dev ## docs/results*.md and the tables in docs/distributed.md, out of docs/figures/*.json
	$(BIN)/python benchmarks/results.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/swapping.py
	$(BIN)/python benchmarks/distributed_page.py

hunt: hunt-opinfo hunt-files hunt-faults hunt-tips hunt-programs ## all hunts for errors, the last one without end

hunt-opinfo: .venv/.built .venv/.dev ## PyTorch's own test inputs, in budgets (two hours); goes on where it was stopped
	PYTHONPATH=tests $(BIN)/python -m opinfo --state results/opinfo.jsonl

hunt-files: .venv/.built .venv/.dev ## 20,000 mutated files for each reader
	$(BIN)/python tests/fuzz/hunt_files.py

hunt-faults: .venv/.built .venv/.dev ## 4,000 interrupted steps, and each call on the page file failing in turn
	$(BIN)/python tests/faults/interrupts.py
	$(BIN)/python tests/faults/disk.py

hunt-tips: .venv/.built .venv/.dev ## 500 random programs run out of budget: are the budgets true that they are told?
	$(BIN)/python tests/tips/hunt.py

hunt-programs: .venv/.built .venv/.dev ## random programs beside plain eager, without end; goes on where it was (MINUTES=10: for so long)
	PYTHONPATH=tests $(BIN)/python -m hunt.machine --folder results/hunt/programs $(if $(MINUTES),--minutes $(MINUTES))

build: .venv/.built ## the virtual environment and the extension

clean: ## removes what was built; the packages in .venv stay
	rm -rf build results .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info src/coop/*.so
	rm -f .venv/.built .venv/.installed

engine-test: ## the engine's own tests alone, without torch
sanitize: ## the same under AddressSanitizer and UBSan, with all rounds (make test: a tenth of them)
sanitize-threads: ## those with several threads under ThreadSanitizer, likewise
include tests/engine/engine.mk

# --- set-up ---------------------------------------------------------------------------------------------------------

.venv/.base: requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r requirements.txt
	@touch $@

.venv/.dev: requirements-dev.txt .venv/.base
	$(PIP) -r requirements-dev.txt
	@touch $@

# Installed once, so that edits in src/ take effect; after that only what changed in csrc/ is compiled again.
.venv/.built: $(wildcard csrc/*/*) setup.py pyproject.toml .venv/.base
	@if test .venv/.installed -nt pyproject.toml -a .venv/.installed -nt setup.py -a .venv/.installed -nt .venv/.base; then \
	  echo "building the extension" && $(BIN)/python setup.py --quiet build_ext --inplace; \
	else \
	  echo "building and installing coop" && $(PIP) --no-build-isolation --no-deps -e . && touch .venv/.installed; \
	fi
	@touch $@
