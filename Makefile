# `make test` and `make conformance` are the two commands; both set up what they need. `make help` lists the rest.
#
# One Python from 3.11 on is enough: .venv holds everything that has a wheel for it. Where that is Python 3.11 and a later one is there
# too, .venv-jax holds the newest JAX, which the Pallas kernels need, without PyTorch. tools/environments.py makes both and says what is
# left out. constraints/ pins the versions; a change there or in pyproject.toml sets the environments up again.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=
# What `make test` begins with; CI leaves it empty, because it has run by then.
LINT ?= lint
# How often `make interop` times each pair.
RATIO_ROUNDS ?= 5
# How much of a grid of sizes or switches `make test` runs: `each` value, or the `whole` (tests/grids.py).
GRIDS ?= each
# Each worker begins with one half of the tests, so that neighbours share what they compile, and ends with what is left.
PYTEST = -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

PY := .venv/bin/python
PY_JAX := .venv-jax/bin/python
READY := .venv/.stamp
READY_JAX := .venv-jax/.stamp
# The versions of Python that a new .venv is made with, the first that is found.
PYTHONS ?= 3.11 3.14 3.13 3.12 3.15
# An environment whose interpreter is gone, with an upgrade of the system say, is set up again.
DEAD := $(shell for each in .venv .venv-jax; do [[ ! -e $$each || -x $$each/bin/python ]] || echo dead-environment; done)
LEFT_OUT := $(PY) tools/environments.py left-out
# Other packages, which `make peers` judges.
PY_PEERS := .venv-peers/bin/python
READY_PEERS := .venv-peers/.stamp
# The oldest JAX that Pallas kernels take.
PY_AOT := .venv-aot/bin/python
READY_AOT := .venv-aot/.stamp

# The same examples in every run: a failure in CI is a failure at the desk. `HYPOTHESIS_PROFILE=explore make test` searches afresh.
export HYPOTHESIS_PROFILE ?= fixed

# $(call setup,DIRECTORY,VERSION,COMMANDS): makes the environment, or sees that the one in place is of that version, and runs
# the commands. One line says how long it took; their output is shown only if one fails.
define setup
	@if [[ ! -e $(1) ]]; then \
		python=$$(tools/find_python.sh $(2)); \
	elif ! $(1)/bin/python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(2)")'; then \
		echo "$(1) is not a working environment of Python $(2); remove it and run make again" >&2; exit 1; \
	fi; \
	start=$$SECONDS; said=$$(mktemp); trap 'rm -f "$$said"' EXIT; \
	{ [[ -e $(1) ]] || "$$python" -m venv $(1); } >"$$said" 2>&1 && { $(3); } >>"$$said" 2>&1 || { cat "$$said" >&2; exit 1; }; \
	echo "$(1): set up in $$((SECONDS - start)) s (Python $(2))"
	@touch $@
endef

.PHONY: help setup setup-plan versions matrix wheel docs test conformance conformance-all mutants mutants-adapted strangers calibration browser aot lint lint-check lint-format lint-types format figures examples peers interop speed clean
.PHONY: dead-environment

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY)  ## make the environments; WITHOUT=torch or WITHOUT=jax leaves a framework out

$(READY): pyproject.toml $(wildcard constraints/py3*.txt) $(DEAD)
	@python=$$(tools/find_python.sh $(PYTHONS)) && WITHOUT="$(WITHOUT)" "$$python" tools/environments.py setup

setup-plan:  ## what `make setup` would do, and does not
	@python=$$(tools/find_python.sh $(PYTHONS)) && WITHOUT="$(WITHOUT)" "$$python" tools/environments.py setup --dry-run

$(READY_AOT): constraints/aot.txt
	$(call setup,.venv-aot,3.12, \
		$(PY_AOT) -m pip install --constraint constraints/aot.txt jax flax absl-py click)

# Wheels alone. The packages taken without their dependencies ask for more than their functions need, a CUDA build of PyTorch among it.
PEERS := $(PY_PEERS) -m pip install --only-binary :all: --constraint constraints/peers.txt
$(READY_PEERS): pyproject.toml constraints/peers.txt
	$(call setup,.venv-peers,3.11, \
		$(PEERS) torch && \
		$(PEERS) hatchling jax flax keras ml_dtypes onnx onnxruntime triton \
			einops huggingface_hub omegaconf dacite regex requests tokenizers tqdm typer \
			kubeflow-trainer-api kubeflow-training && \
		$(PEERS) --no-deps flash-linear-attention fla-core flashrnn mlstm-kernels transformers xlstm && \
		$(PEERS) --no-build-isolation --editable '.[all]')

# The tests whose outcome can depend on the version of JAX: each once for every operation (tests/grids.py), and all of the Pallas kernels,
# which no other version runs; `make test GRIDS=whole`, of every night, runs all sets of parameters. Tests compile with few optimisations
# (tools/environments.py says how much that saves); the laws under the newest JAX, which try values at many sizes, with all of them.
TESTS_OF_JAX := tests/both tests/jax tests/calls tests/examples/test_jax_blocks.py tests/house/test_imports.py tests/house/test_clash.py::test_a_directory_of_ones_own_is_no_clash

test: $(LINT) $(READY)  ## lint, all tests, and the wheel with NumPy alone; where .venv-jax is, tests of JAX again under the newest JAX
	@$(LEFT_OUT)
	env $$($(PY) tools/environments.py quick-tests) $(PY) $(PYTEST) --grids $(GRIDS) $$($(PY) tools/environments.py tests)
	@if [[ -e $(READY_JAX) ]]; then set -x; \
		JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PY_JAX) $(PYTEST) --grids $(if $(filter whole,$(GRIDS)),whole,one) $(TESTS_OF_JAX); \
	fi
	$(PY) tools/check_wheel.py --environment numpy
	@$(LEFT_OUT)

# JAX shows a processor as several devices to a whole process, and computes otherwise where it is one: these laws run by themselves.
EIGHT_DEVICES := --xla_force_host_platform_device_count=8
LAWS_OF_DEVICES := sharding sharding_by_explicit_axes sharding_over_steps

conformance: $(READY)  ## the laws, on the spec and on every implementation whose framework is installed (8 minutes on two processors)
	@mkdir -p reports
	@$(LEFT_OUT)
	env $$($(PY) tools/environments.py quick-laws) GATESPEC_TORCH_PROCESSES=4 $(PY) -m conformance run $$($(PY) tools/environments.py targets) --json reports/conformance.json
	@if [[ " $$($(PY) tools/environments.py targets) " == *" jax_impl "* ]]; then set -x; \
		env $$($(PY) tools/environments.py quick-laws) bash -c 'XLA_FLAGS="$${XLA_FLAGS:-} $(EIGHT_DEVICES)" exec "$$@"' - \
			$(PY) -m conformance run jax_impl $(addprefix --law ,$(LAWS_OF_DEVICES)) --json reports/conformance-devices.json; \
	fi
	@$(LEFT_OUT)

# Under the newest JAX, XLA compiles with all optimisations, which takes most of the time: a quick run, and every night all
# laws (`matrix`). Several laws compile the same program: JAX compiles it once, and keeps it in a directory that lasts as
# long as the run. Interpreted kernels, which XLA does not compile on a GPU, are compiled with few optimisations.
# What the kernels' interpreter can do in a minute and a half; docs/pallas-kernels.md says how to run all of it.
PALLAS_PART := --op mlstm --op mlstm_step --op gru --law value --law gradient --dtype float32 --dtype bfloat16 --examples 1 --max-steps 70

conformance-all: conformance  ## the same, then a quick run under the newest JAX, and a part of its kernels under their interpreter
	@if [[ -e $(READY_JAX) ]]; then compiled=$$(mktemp -d); trap 'rm -rf "$$compiled"' EXIT; set -x; \
		JAX_COMPILATION_CACHE_DIR="$$compiled" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2 \
			$(PY_JAX) -m conformance run jax_impl --quick --dtype float32 --dtype bfloat16 --json reports/conformance-jax-latest.json; \
	fi
	@python=$$($(PY) tools/environments.py pallas); if [[ -n $$python ]]; then set -x; \
		JAX_DISABLE_MOST_OPTIMIZATIONS=1 GATESPEC_PALLAS_INTERPRET=1 $$python -m conformance run jax_impl --kernel-backend pallas $(PALLAS_PART) --json reports/conformance-pallas.json; \
	fi

versions:  ## oldest and newest versions that are tested, and the newest on the package index
	@python=$$(tools/find_python.sh 3.15 3.14 3.13 3.12 3.11) && "$$python" tools/versions.py

matrix:  ## tests with the oldest and the newest versions of the frameworks; END=oldest and PART=kernels choose
	@python=$$(tools/find_python.sh 3.11 3.12 3.13 3.14 3.15) && \
		"$$python" tools/matrix.py $(foreach end,$(END),--end $(end)) $(foreach part,$(PART),--part $(part))

wheel: $(READY)  ## build the distributions, and try the wheel in clean environments: NumPy alone, the suite, each framework
	$(PY) tools/check_wheel.py

docs: $(READY)  ## build the documentation site in build/site, with warnings as errors, and check its links
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	$(PY) tools/check_site.py build/site

mutants: $(READY)  ## every planted fault with ten seeds: the score of the suite (20 minutes)
	$(PY) -m tests.suite.mutants --jobs $(PYTEST_WORKERS) --json tests/suite/mutants/score.json

mutants-adapted: $(READY)  ## the same faults behind an adapter that refuses calls, and in a loop on PyTorch tensors
	$(PY) -m tests.suite.mutants --setting "refusing adapter" --jobs $(PYTEST_WORKERS) --json tests/suite/mutants/score.json
	$(PY) -m tests.suite.mutants --setting "PyTorch loop" --jobs $(PYTEST_WORKERS) --json tests/suite/mutants/score.json

strangers: $(READY)  ## judge implementations that are not ours: of how many the first cause is the true one (10 minutes)
	$(PY) -m tests.suite.strangers --json tests/suite/strangers/score.json

calibration: $(READY)  ## every correct variant on 1,000 or 10,000 cases: false alarms (four hours of processor time)
	$(PY) -m tests.suite.calibration --jobs $(PYTEST_WORKERS) --json tests/suite/calibration/results.json

aot: $(READY) $(READY_AOT)  ## compile every kernel for GPUs that are not there: registers, spills, shared memory (half an hour)
	$(PY) -m benchmarks aot
	$(PY_AOT) -m benchmarks.gpu.aot_pallas

peers: $(READY_PEERS)  ## judge the public implementations of the mLSTM and the GRU, and draw docs/peers.md (hours)
	$(PY_PEERS) -m benchmarks peers

interop: $(READY_PEERS)  ## our layers and kernels in the packages that people use, compared with those packages (2 minutes)
	$(PY_PEERS) -m pytest $(PYTEST_ARGS) tests/interop
	$(PY_PEERS) -m tests.interop.ratios --rounds $(RATIO_ROUNDS)

speed: $(READY) $(READY_PEERS)  ## time ours and the peers on this CPU, and write README's and cpu-speed.md's tables (half an hour, on an idle machine)
	$(PY_PEERS) -m benchmarks run --suite cpu --json benchmarks/results/cpu.json
	$(PY_PEERS) -m benchmarks busy
	$(PY) -m benchmarks report --readme

browser:  ## see that there is a Chromium for the HTML report's test; as root on Debian, install one
	@if ! tools/find_chromium.sh >/dev/null 2>&1; then \
		if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
		else \
			tools/find_chromium.sh; \
		fi; \
	fi
	@path=$$(tools/find_chromium.sh) && echo "browser: $$path"

lint: lint-check lint-format lint-types  ## ruff and pyright

lint-check: $(READY)
	$(PY) -m ruff check .

lint-format: $(READY)
	$(PY) -m ruff format --check .

# Where a framework is missing, `left-out` says that there is no type check.
lint-types: $(READY)
	@if [[ -n $$($(PY) tools/environments.py type-check) ]]; then set -x; $(PY) -m pyright; fi

format: $(READY)  ## let ruff rewrite what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

figures: $(READY)  ## draw the pictures of README and docs/ again
	$(PY) docs/figures.py

examples: $(READY)  ## train the language model in both frameworks: fifty steps, killed runs, several processes
	$(PY) -m pytest $(PYTEST_ARGS) tests/examples/test_language_model_parts.py tests/examples/slow_language_model.py

clean:  ## remove reports, builds and caches; the environments stay (`rm -rf .venv*` starts over)
	rm -rf reports build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +
