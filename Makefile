# Everything runs in $(VENV), which is made once. The stamp files in it remember what was installed from which
# requirements, so a second run fetches nothing.

PYTHON ?= python3
VENV ?= .venv
TENSORFLOW_VENV ?= .venv-tensorflow
NP ?= 2
PYTEST_ARGS ?=
# How many processes share the tests. One waits half of its time, and has up to four busy ranks at others, so two or three
# per core keep the cores busy.
TEST_PROCESSES ?= $(shell echo $$(($(CPUS) < 4 ? 5 * $(CPUS) / 2 : 8)))
MINUTES ?= 10
BENCH_ARGS ?= --compare gloo
GPU_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt
TENSORFLOW_PIP := $(TENSORFLOW_VENV)/bin/python -m pip --disable-pip-version-check install --constraint constraints-tensorflow.txt
# What a stage does, and about how long that takes.
SAY := printf '== %s\n'
IN_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"
REQUIREMENTS := setup.cfg setup.py pyproject.toml constraints.txt
CPUS := $(shell nproc)
LIBRARY := hvdlite/_native/libhvdlite.so
# A folder is newer than the library when a source has come or gone.
OF_LIBRARY := setup.py $(shell find $(addprefix native/,include kernels page ring shm) -type d -o -name '*.h' -o -name '*.cc')
# Which compiler has made the library, make does not know.
OTHER_COMPILER := $(if $(filter command environment,$(firstword $(origin CXX))),other-compiler)
# The package as it is installed, with launcher/ in it: mypy follows imports by their path.
TYPED := build/typed/hvdlite
# In the folder that holds this one, 'import hvdlite' would find this folder before the editable install. A path in
# site-packages comes first.
ON_PATH = @$(or $(1),$(BIN))/python -c 'import sysconfig; open(sysconfig.get_path("purelib") + "/hvdlite-source.pth", "w").write("$(CURDIR)\n")'

# Keras with its three back ends, whose pins are its own.
KERAS_VENV ?= .venv-keras
KERAS_PIP := $(KERAS_VENV)/bin/python -m pip --disable-pip-version-check install --constraint constraints-keras.txt

# Ray, Spark and Dask, with PyTorch for torchrun.
ENGINES_VENV ?= .venv-engines
ENGINES_PIP := $(ENGINES_VENV)/bin/python -m pip --disable-pip-version-check install --constraint constraints-engines.txt

# Programs that were written for Horovod, on top of Keras's environment.
PROGRAMS_VENV ?= .venv-programs
PROGRAMS_PIP := $(PROGRAMS_VENV)/bin/python -m pip --disable-pip-version-check install --constraint constraints-programs.txt

# Tests with an environment of their own, and those with a target of their own.
OTHER_FRAMEWORKS := tests/keras tests/programs tests/tensorflow
FAMILIES := tests/compat tests/compiled tests/engines tests/faults tests/gpu tests/hosts tests/house tests/observe tests/security $(OTHER_FRAMEWORKS)
RUN_TESTS = $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-compile test-compat test-hosts test-observe test-house test-gpu gpu test-engines test-keras test-tensorflow test-programs test-ignite test-busy test-faults soak check format docs forms native other-compiler test-native test-agreement wheel bench bench-table bench-targets bench-hosts clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "  PYTHON=python3.12 picks the interpreter of a new $(VENV); NP=4 the ranks of demo and bench."

demo: $(VENV)/.for-demo native ## train on handwritten digits with NP ranks
	@$(SAY) 'training on handwritten digits with $(NP) ranks: some seconds'
	$(IN_VENV) hvdrun -np $(NP) python examples/torch_digits.py

# Tests start thousands of processes, which would each compile the sources if they were not allowed to keep the result.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.for-development native ## run the tests of the core and of PyTorch
	@$(SAY) 'building and running the native tests with sanitizers: about a minute at first'
	$(MAKE) --no-print-directory -C native -j $(CPUS) test SANITIZE=address,undefined
	@$(SAY) 'running all other tests in $(TEST_PROCESSES) processes: about six minutes on two idle cores'
	$(RUN_TESTS) $(addprefix --ignore=,$(FAMILIES))

test-compile: export PYTHONDONTWRITEBYTECODE =
test-compile: $(VENV)/.for-development native ## run the tests of torch.compile
	@$(SAY) 'compiling every form of every collective: two minutes'
	$(RUN_TESTS) tests/compiled

test-compat: export PYTHONDONTWRITEBYTECODE =
test-compat: $(VENV)/.for-development native ## run the tests of scripts and calls that were written for Horovod
	@$(SAY) 'running scripts and calls written for Horovod: about a minute'
	$(RUN_TESTS) tests/compat

test-hosts: export PYTHONDONTWRITEBYTECODE =
test-hosts: $(VENV)/.for-development native ## run the tests of several hosts, faults and attacks, as root
	@$(SAY) 'running jobs on several hosts, cutting cables and attacking jobs: about five minutes on two cores'
	$(RUN_TESTS) tests/hosts tests/faults tests/security

test-observe: export PYTHONDONTWRITEBYTECODE =
test-observe: $(VENV)/.for-development native ## run the tests of what hvdrun says of a job that runs: slow, stuck, timelines
	@$(SAY) 'making ranks slow and stuck, and looking at them: four minutes'
	$(RUN_TESTS) tests/observe

test-house: $(VENV)/.for-development native ## run the tests of the code's form, of the pages' examples and of the package
	@$(SAY) 'checking imports, names and pages, and building wheels: about a minute'
	$(RUN_TESTS) tests/house

test-gpu: $(VENV)/.for-development native ## run the tests of the plane for GPUs, on stand-ins for CUDA and NCCL
	@$(SAY) 'building stand-ins for CUDA and NCCL, and running collectives and PyTorch on them: two minutes'
	$(RUN_TESTS) tests/gpu

gpu: ## build, test and measure on this machine's GPUs, with PYTHON and without an environment
	$(PYTHON) -m tests.gpu.machine $(GPU_ARGS)

test-engines: export PYTHONDONTWRITEBYTECODE =
test-engines: $(ENGINES_VENV)/.for-tests native ## run the tests of jobs that other engines start, in an environment of their own
	@$(SAY) 'running jobs of other engines: seven minutes on two cores'
	$(ENGINES_VENV)/bin/python -m pytest --numprocesses 3 --dist loadfile $(PYTEST_ARGS) tests/engines

test-keras: $(KERAS_VENV)/.for-tests native ## run the tests of JAX and of Keras on JAX, PyTorch and TensorFlow
	@$(SAY) 'training with Keras on each of its back ends: about six minutes on two cores'
	$(KERAS_VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile $(PYTEST_ARGS) tests/keras

test-tensorflow: export PYTHONDONTWRITEBYTECODE =
test-tensorflow: $(TENSORFLOW_VENV)/.for-tests native ## run the tests of TensorFlow, in an environment of their own
	@$(SAY) 'running the tests of TensorFlow: about four minutes on two cores'
	$(TENSORFLOW_VENV)/bin/python -m pytest $(PYTEST_ARGS) tests/tensorflow

test-programs: $(PROGRAMS_VENV)/.for-tests native ## run DeePMD-kit, DeepXDE and some tests of pytorch-ignite, in an environment of their own
	@$(SAY) 'running programs that were written for Horovod: about two minutes on two cores'
	$(PROGRAMS_VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile $(PYTEST_ARGS) tests/programs

test-ignite: $(PROGRAMS_VENV)/.for-ignite native ## run all of pytorch-ignite's own tests of Horovod
	@$(SAY) 'running the tests of pytorch-ignite: about half an hour on two cores'
	$(PROGRAMS_VENV)/bin/python -m tests.programs.ignite $(PYTEST_ARGS) tests/ignite

test-busy: export PYTHONDONTWRITEBYTECODE =
test-busy: $(VENV)/.for-development native ## run all tests but those of other frameworks while other processes keep the cores busy
	@$(SAY) 'running the tests beside processes that keep the cores busy: about half an hour on two cores'
	$(BIN)/python -m tests.harness.load $(RUN_TESTS) $(addprefix --ignore=,$(OTHER_FRAMEWORKS))

test-faults: $(VENV)/.for-development native ## run all tests of several hosts, faults and attacks, and the cases that test leaves out
	$(BIN)/python -m pytest -m 'not soak' tests/hosts tests/faults tests/security $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m faults tests/compat tests/frontends tests/multiproc $(PYTEST_ARGS)

soak: $(VENV)/.for-development native ## random faults for MINUTES=10
	SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak --timeout 0 -s tests/faults $(PYTEST_ARGS)

check: $(VENV)/.for-development ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $$(find native hvdlite tests benchmarks -name '*.h' -o -name '*.cc')
	@rm -rf $(TYPED) && mkdir -p $(TYPED) && ln -s $(addprefix ../../../,$(wildcard hvdlite/*) launcher) $(TYPED)
	$(BIN)/mypy

format: $(VENV)/.for-development ## format all sources in place
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find native hvdlite tests benchmarks -name '*.h' -o -name '*.cc')

docs: $(VENV)/.for-demo ## write docs/settings.md and the flags of docs/hvdrun.md from their tables
	$(BIN)/python -m tests.house.settings_page
	$(BIN)/python -m tests.house.flags_page

forms: $(VENV)/.for-development ## write the forms of all collectives from their table
	$(BIN)/python -m tests.house.forms_files

native: $(LIBRARY) ## build the native library in place

test-native: ## run the native tests under ASan with UBSan and under TSan, and long explorations
	$(MAKE) --no-print-directory -C native -j $(CPUS) test SANITIZE=address,undefined
	$(MAKE) --no-print-directory -C native -j $(CPUS) test SANITIZE=thread
	$(MAKE) --no-print-directory -C native explore EXPLORE=long

test-agreement: ## run the agreement of ranks in all orders of its accesses to shared memory, and under TSan
	$(MAKE) --no-print-directory -C native explore
	$(MAKE) --no-print-directory -C native -j $(CPUS) test SANITIZE=thread TESTS=build/thread/tests/page_test

wheel: $(VENV)/.build-tools ## build dist/hvdlite-*.whl
	rm -rf build/lib* dist
	HVDLITE_REQUIRE_NATIVE=1 $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist/*.whl

bench: $(VENV)/.for-demo native ## measure collectives with NP ranks
	$(IN_VENV) hvdrun -np $(NP) python -m hvdlite.bench $(BENCH_ARGS)

bench-table: $(VENV)/.for-demo native ## measure, and write the table of docs/performance.md
	@mkdir -p build
	$(IN_VENV) hvdrun -np 2 python -m benchmarks --compare gloo,oneccl,mpi --registered --sizes 8,1K:256M:*4 --json build/sizes.json
	for ranks in 4 8; do \
		$(IN_VENV) hvdrun -np $$ranks python -m benchmarks --compare gloo,oneccl,mpi --registered --sizes 8,1K:16M:*4 --iters 150 --json build/sizes-$$ranks.json || exit; \
	done
	$(IN_VENV) hvdrun -np 2 python -m hvdlite.bench --compare gloo --many 1000 1K --json build/many.json
	$(IN_VENV) hvdrun -np 2 python -m hvdlite.bench --train --json build/train.json
	$(BIN)/python -m benchmarks.table build/sizes.json build/sizes-4.json build/sizes-8.json build/many.json build/train.json

bench-targets: $(VENV)/.for-demo native ## hold all-reduce within this host against Gloo, MPI and its targets
	@mkdir -p build
	$(IN_VENV) hvdrun -np 2 python -m benchmarks.targets --markdown build/targets-2.md
	$(IN_VENV) hvdrun -np 4 python -m benchmarks.targets --markdown build/targets-4.md

bench-hosts: $(VENV)/.for-development native ## measure across two hosts made of namespaces; as root
	$(BIN)/python -m tests.bench.hosts

clean: ## remove everything that was built, except .venv
	rm -rf build dist native/build hvdlite/_native *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks hvdlite launcher tests examples -name __pycache__ -prune -exec rm -rf {} +

$(LIBRARY): $(OF_LIBRARY) $(OTHER_COMPILER) | $(VENV)/.build-tools
	@$(SAY) 'building the native library: up to half a minute'
	$(BIN)/python setup.py --quiet build_native --inplace

# ---- the environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "hvdlite needs Python 3.11 or newer, and '$(PYTHON)' is not; name one with 'make PYTHON=...'." >&2; exit 2; }
	@$(SAY) 'making an environment in $(VENV): some seconds, once'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build-tools: pyproject.toml | $(BIN)/python
	$(PIP) 'setuptools>=77'
	@touch $@

$(VENV)/.for-demo: $(REQUIREMENTS) $(VENV)/.build-tools
	@$(SAY) 'installing hvdlite, PyTorch and what the examples need: two minutes, once; most of it is fetching PyTorch'
	$(PIP) --no-build-isolation --editable '.[torch,examples]'
	$(ON_PATH)
	@touch $@

$(TENSORFLOW_VENV)/.for-tests: $(REQUIREMENTS) constraints-tensorflow.txt
	@$(SAY) 'installing hvdlite, TensorFlow and what its tests need in $(TENSORFLOW_VENV): two minutes, once'
	$(PYTHON) -m venv $(TENSORFLOW_VENV)
	$(TENSORFLOW_PIP) 'setuptools>=77'
	$(TENSORFLOW_PIP) --no-build-isolation --editable '.[test]' tensorflow-cpu scikit-learn
	@touch $@

# Only what is still missing: 'pip install .[test,dev]' would build and install hvdlite once more.
$(VENV)/.for-development: $(VENV)/.for-demo
	@$(SAY) 'installing what tests and checks need: half a minute, once'
	$(BIN)/python -c 'import configparser; all = configparser.ConfigParser(); all.read("setup.cfg"); \
	    extras = all["options.extras_require"]; print(extras["test"], extras["dev"])' > $@.txt
	$(PIP) --requirement $@.txt
	@rm $@.txt
	@touch $@

$(KERAS_VENV)/.for-tests: $(REQUIREMENTS) constraints-keras.txt
	@$(SAY) 'installing Keras, JAX, TensorFlow and PyTorch in $(KERAS_VENV): two to five minutes, once'
	test -x $(KERAS_VENV)/bin/python || $(PYTHON) -m venv $(KERAS_VENV)
	$(KERAS_PIP) 'setuptools>=77' wheel
	$(KERAS_PIP) tensorflow-cpu --no-build-isolation --editable '.[keras,jax,torch,examples,test]'
	$(KERAS_PIP) --no-deps tf_keras  # which would bring the TensorFlow for GPUs along
	$(call ON_PATH,$(KERAS_VENV)/bin)
	@touch $@

$(ENGINES_VENV)/.for-tests: $(REQUIREMENTS) constraints-engines.txt
	@$(SAY) 'installing Ray, Spark, Dask and PyTorch in $(ENGINES_VENV): two to five minutes, once'
	test -x $(ENGINES_VENV)/bin/python || $(PYTHON) -m venv $(ENGINES_VENV)
	$(ENGINES_PIP) 'setuptools>=77' wheel
	$(ENGINES_PIP) 'ray[train]' pyspark distributed kubernetes-validate jsonschema --no-build-isolation --editable '.[torch,examples,test]'
	$(call ON_PATH,$(ENGINES_VENV)/bin)
	@touch $@

# The installed environment below counts for pip, so only the programs themselves are fetched.
$(PROGRAMS_VENV)/.for-tests: $(KERAS_VENV)/.for-tests constraints-programs.txt
	@$(SAY) 'installing DeePMD-kit, DeepXDE and pytorch-ignite in $(PROGRAMS_VENV): half a minute, once'
	test -x $(PROGRAMS_VENV)/bin/python || $(KERAS_VENV)/bin/python -m venv $(PROGRAMS_VENV)
	$(KERAS_VENV)/bin/python -m tests.programs.below $(PROGRAMS_VENV)
	$(PROGRAMS_PIP) deepmd-kit deepxde mpi4py pytorch-ignite
	@touch $@

$(PROGRAMS_VENV)/.for-ignite: $(PROGRAMS_VENV)/.for-tests
	$(PROGRAMS_PIP) dill nltk scikit-image
	@touch $@
