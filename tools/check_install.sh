#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the build $1 into an empty folder, moves that, and builds and runs a program against it in three ways; then
# the C program of the README, as the README says.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
work=$PWD/build/install
rm -rf "$work"
cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved" # nothing may remember where it was installed
prefix=$work/moved
library_dir=$(dirname "$(find "$prefix" -name libtpfsdp.so)")
export LD_LIBRARY_PATH=$library_dir

cc -std=c99 -Wall -Werror -I"$prefix/include" tests/consumers/main.c -L"$library_dir" -ltpfsdp -o "$work/plain"
"$work/plain"

export PKG_CONFIG_PATH=$library_dir/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs tpfsdp)"
cc -std=c99 tests/consumers/main.c "${flags[@]}" -o "$work/pkg-config"
"$work/pkg-config"

awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md >"$work/quick.c"
cc -Wall -Wextra -Werror "$work/quick.c" -o "$work/quick" "${flags[@]}"
printed=$("$work/quick" | sort)
expected=$(printf 'rank %d of 4: gradient 1.5\n' 0 1 2 3)
[ "$printed" = "$expected" ] || { echo "install: the C program of the README prints: $printed" >&2 && exit 1; }

cmake -S tests/consumers -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/cmake"
"$work/cmake/consumer"
echo "install: plain, pkg-config, README, CMake: 4 passed, 0 failed, 0 skipped"
