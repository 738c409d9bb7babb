# Two commands are all a newcomer needs, each sets up what it needs first:
#
#   make demo   Kimi Delta Attention on a trained layer's inputs: error against fp64, time, L and Mqk of a chunk
#   make test   every test: C++, C, command line, Python, sanitizers, fuzzers, format, lint, layers
#
# Neither needs a GPU or CUDA; `make test` compiles the kernels and skips the tests that need a GPU.
# `make help` lists the parts. FLASHKDA_NO_INSTALL=1 installs no system packages and no nvcc.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
# The CUDA backend in lint, test-cpp and test-python: ON, OFF, or AUTO (where nvcc is found).
FLASHKDA_CUDA ?= $(if $(FLASHKDA_NO_INSTALL),AUTO,ON)
VENV := .venv
LINT := .cache/lint
CONFIGURE := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache) $(if $(CI),-DFLASHKDA_WERROR=ON)
DEV := --preset dev $(CONFIGURE) -DFLASHKDA_CUDA=$(FLASHKDA_CUDA)
# The Python package's kernels: test-cpp compiles them for every architecture, one will do here unless they are to run.
PACKAGE := -DFLASHKDA_CUDA=$(FLASHKDA_CUDA) $(if $(wildcard /dev/nvidia0),,-DFLASHKDA_CUDA_ARCHITECTURES=80)
# Not src/cuda: the GPU record's digest covers every byte of it, so it is formatted with the next run on a GPU.
CXX_FILES = git ls-files '*.c' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh'
say = @printf '\n\033[1m== %s\033[0m\n' '$(1)'

.PHONY: help demo test build test-cpp test-sanitize fuzz test-python lint format bench gpu-build gpu-test gpu-bench docs clean setup-build setup-test setup-cuda

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: build ## the operation on a trained layer's inputs, checked, timed and shown
	@tools/demo.sh build/cpu-release/src/cli/flashkda

# One after the other: each uses all cores, and the first failure is the last thing on the screen.
test: ## everything that a change must pass
	@for part in lint test-cpp test-sanitize fuzz test-python; do $(MAKE) $$part; done
	$(call say,every test passed)

build: setup-build ## library and command line tool, optimised (build/cpu-release)
	@cmake --preset cpu-release $(CONFIGURE) >build/cpu-release.log || { cat build/cpu-release.log; exit 1; }
	@cmake --build --preset cpu-release -j$(JOBS)

test-cpp: setup-cuda ## C++, C, command line and install tests, CUDA kernels compiled (ctest)
	$(call say,C++ and C and command line tests)
	@cmake $(DEV)
	@cmake --build --preset dev -j$(JOBS)
	@ctest --preset dev -j$(JOBS)
	@tools/check_cases.py build/dev

test-sanitize: setup-test ## the same under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call say,the same under AddressSanitizer and UndefinedBehaviorSanitizer)
	@cmake --preset cpu-asan-ubsan $(CONFIGURE) -DFLASHKDA_WERROR=OFF # g++ 12 warns falsely of std::regex there
	@cmake --build --preset cpu-asan-ubsan -j$(JOBS)
	@ctest --preset cpu-asan-ubsan -j$(JOBS)

fuzz: setup-test ## each fuzzer for FUZZ_SECONDS (60), from its corpus
	$(call say,fuzzers)
	@cmake --preset fuzz
	@cmake --build --preset fuzz -j$(JOBS)
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

test-python: setup-cuda ## Python package, tools and examples (pytest)
	$(call say,Python tests)
	@CMAKE_ARGS="$(PACKAGE) $${CMAKE_ARGS:-}" tools/setup_python.sh $(VENV)
	@$(VENV)/bin/python -m pytest

lint: setup-cuda $(LINT)/.ready ## format, clang-tidy, ruff, layers, generated parts of the README
	$(call say,format and lint and layers)
	@tools/check_layers.py
	@$(CXX_FILES) | xargs $(LINT)/bin/clang-format --dry-run --Werror
	@$(LINT)/bin/ruff check --quiet .
	@$(LINT)/bin/ruff format --check --quiet .
	@tools/sync_readme.py --check
	@tools/render_tables.py --check
	@cmake $(DEV) >/dev/null
	$(call say,clang-tidy: some minutes)
	@run-clang-tidy -p build/dev -quiet -j$(JOBS) '$(CURDIR)/(src|examples|bench)/.*\.(c|cpp)$$' >build/tidy.log 2>&1 \
	  || { grep -E -A4 '(error|warning):' build/tidy.log; exit 1; }

format: $(LINT)/.ready ## rewrite the sources the way lint wants them
	@$(CXX_FILES) | xargs $(LINT)/bin/clang-format -i
	@$(LINT)/bin/ruff check --quiet --fix .
	@$(LINT)/bin/ruff format --quiet .

bench: setup-test ## measure accuracy and speed, record them in docs/cpu/verified.json and the README's tables
	@cmake --preset dev -DFLASHKDA_BUILD_BENCH=ON $(CONFIGURE)
	@cmake --build --preset dev -j$(JOBS)
	@tools/setup_python.sh $(VENV)
	@$(VENV)/bin/python tools/record_cpu.py --build build/dev
	@tools/render_tables.py

GPU_BUILD := build/gpu
gpu-test: $(if $(NO_BUILD),,gpu-build) ## on a GPU machine: C++ and Python tests, sanitizers (BUILD=folder NO_BUILD=1: one built elsewhere)
	$(call say,GPU tests)
	@tools/gpu_test.py $(or $(BUILD),$(GPU_BUILD))

gpu-build:
	@cmake -S . -B $(or $(BUILD),$(GPU_BUILD)) -G Ninja -DFLASHKDA_CUDA=ON -DFLASHKDA_BUILD_TESTS=ON $(CONFIGURE)
	@cmake --build $(or $(BUILD),$(GPU_BUILD)) -j$(JOBS) --target test_cuda

gpu-bench: setup-test ## on a GPU machine: accuracy and speed, recorded in docs/gpu/verified.json and the README's tables
	@cmake --preset cpu-release -B $(GPU_BUILD) -DFLASHKDA_CUDA=ON -DFLASHKDA_BUILD_BENCH=ON $(CONFIGURE)
	@cmake --build $(GPU_BUILD) -j$(JOBS) --target bench_cuda accuracy_cuda
	@$(GPU_BUILD)/bench/accuracy_cuda --json $(GPU_BUILD)/accuracy.json
	@$(GPU_BUILD)/bench/bench_cuda --split --json $(GPU_BUILD)/bench.json
	@tools/gpu_record.py $(GPU_BUILD)/accuracy.json $(GPU_BUILD)/bench.json
	@tools/render_tables.py

docs: ## the parts of the README that come from examples and records
	@tools/sync_readme.py
	@tools/render_tables.py

clean: ## remove what was built (the Python environment stays)
	@rm -rf build dist .cache

setup-build:
	@tools/setup_system.sh build
	@mkdir -p build

setup-test:
	@tools/setup_system.sh test
	@mkdir -p build

setup-cuda: setup-test
	@[ $(FLASHKDA_CUDA) != ON ] || tools/setup_cuda.sh

# The formatters' versions are pinned: another version formats differently.
$(LINT)/.ready: tools/requirements-lint.txt
	@python3 -m venv $(LINT)
	@$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
