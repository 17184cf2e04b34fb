#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python binding with its library and installs it into build/venv. Its build tree is kept, so a second run
# compiles only what changed. The pinned tools of build/venv are used, nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/build/venv/bin:$PATH"
exec build/venv/bin/pip install -q --disable-pip-version-check --no-input --no-deps --no-build-isolation \
  --force-reinstall --config-settings=build-dir=build/python ./bindings/python
