# SPDX-License-Identifier: Apache-2.0
# The entry for people. Thin: CMake builds, tools/ does the rest; every target sets up what it needs.
.DEFAULT_GOAL := help
PYTHON := build/venv/bin/python

.PHONY: help setup build python demo test test-full mutants lint format clean

help: ## what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F '\t' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## install packages (as root) and make the Python environment build/venv
	@tools/setup.sh

build: setup ## the release build, in build/release
	cmake --preset release
	cmake --build --preset release

python: setup ## build the Python binding and install it into build/venv
	tools/install_binding.sh

demo: setup ## train the digits classifier sharded, and compare it with the unsharded run
	cmake --preset release
	cmake --build --preset release --target tpfsdp_python example_digits
	$(PYTHON) tools/demo.py

test: setup ## all that CI runs; the last line counts it
	$(PYTHON) tools/run_tests.py

test-full: setup ## also the release build, long runs, model variants and mutants
	$(PYTHON) tools/run_tests.py --full

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
