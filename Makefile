# SPDX-License-Identifier: Apache-2.0
# The entry for people. Thin: CMake builds, tools/ does the rest; every target sets up what it needs.
.DEFAULT_GOAL := help
PYTHON := build/venv/bin/python

.PHONY: help setup build python demo test test-full kill-matrix bench mutants lint format clean

help: ## what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F '\t' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: ## install packages (as root) and make the Python environment build/venv
	@tools/setup.sh

build: setup ## the release build, in build/release
	cmake --preset release
	cmake --build --preset release

python: setup ## build the Python binding and install it into build/venv
	tools/install_binding.sh

demo: setup ## train the digits classifier sharded, and compare it with the unsharded run
	cmake --preset release
	cmake --build --preset release --target tpfsdp_python example_digits example_does_not_fit \
	  example_transformer tpfsdp-run
	$(PYTHON) tools/demo.py

test: setup ## all that CI runs; the last line counts it
	$(PYTHON) tools/run_tests.py

test-full: setup ## also the release build, long runs, model variants and mutants
	$(PYTHON) tools/run_tests.py --full

kill-matrix: setup ## strike one rank of a job with every fault at every phase; build/kill-matrix.json has all of it
	cmake --preset dev
	cmake --build --preset dev --target kill_rank
	$(PYTHON) tools/kill_matrix.py --full

bench: setup ## what a message between processes costs, beside a futex ping-pong
	cmake --preset release
	cmake --build --preset release --target bench_latency tpfsdp-run
	build/release/tpfsdp-run -n 2 build/release/bench_latency
	build/release/tpfsdp-run -n 4 build/release/bench_latency

mutants: setup ## build with known faults; each must fail its test
	$(PYTHON) tools/mutants.py

lint: setup-lint ## formatting, headers, layers
	git ls-files '*.c' '*.h' '*.cpp' '*.hpp' | grep -v '^include/' | xargs clang-format-19 --dry-run --Werror
	$(PYTHON) tools/check_headers.py
	$(PYTHON) tools/check_layers.py

format: setup-lint ## format all sources but the public headers, whose comments are set by hand
	git ls-files '*.c' '*.h' '*.cpp' '*.hpp' | grep -v '^include/' | xargs clang-format-19 -i

.PHONY: setup-lint
setup-lint:
	@tools/setup.sh lint

clean: ## remove build/
	rm -rf build
