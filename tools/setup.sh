#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the project needs on a bare Debian 12 machine, and says what it installs. What is there is skipped,
# so every make target calls it.
#
#   tools/setup.sh           packages to build and test, and the Python environment build/venv
#   tools/setup.sh lint      also the formatter, and clang as a second compiler for the header checks
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build pkg-config ccache
          libgtest-dev libgmock-dev nlohmann-json3-dev libxxhash-dev
          swig python3 python3-dev python3-venv)
if [ "${1:-}" = lint ]; then packages+=(clang-19 clang-format-19); fi

install_packages() {
  command -v dpkg-query >/dev/null || {
    echo "setup: not a Debian system; taking these to be installed: ${packages[*]}" >&2
    return 0
  }
  local missing=() package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: these packages are missing, and only root can install them. Run:" >&2
    echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q </dev/null
  apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" </dev/null
}

# NumPy's pinned version and tomllib need 3.11; the first one on PATH that is new enough and can make environments.
find_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "setup: no Python of version 3.11 or later with venv and ensurepip on PATH" >&2
  exit 1
}

install_python() {
  local stamp=build/venv/requirements.installed
  cmp -s tools/requirements.txt "$stamp" && return 0
  local python
  python=$(find_python)
  echo "setup: making build/venv with $("$python" --version): $(grep -v '^#' tools/requirements.txt | tr '\n' ' ')"
  "$python" -m venv --clear build/venv
  build/venv/bin/pip install -q --disable-pip-version-check --no-input -r tools/requirements.txt
  cp tools/requirements.txt "$stamp"
}

# Targets of a parallel make may come here at the same time.
mkdir -p build
exec 9>build/.setup.lock
flock 9
install_packages
install_python
