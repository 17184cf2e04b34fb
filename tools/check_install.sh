#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the build $1 into an empty folder, moves that, and builds and runs a program against it in three ways; then
# the C programs of the README, as the README says.
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

c_block() { awk -v wanted="$1" '/^```c$/ { inside = ++number == wanted; next } /^```$/ { inside = 0 } inside' README.md; }
expect() {
  [ "$2" = "$3" ] || { echo "install: the $1 program in C of the README prints: $2" >&2 && exit 1; }
}
c_block 1 >"$work/quick.c"
cc -Wall -Wextra -Werror "$work/quick.c" -o "$work/quick" "${flags[@]}"
expect first "$("$work/quick" | sort)" "$(printf 'rank %d of 4: gradient 1.5\n' 0 1 2 3)"
{ grep '^#include' "$work/quick.c" && c_block 2; } >"$work/processes.c"
cc -Wall -Wextra -Werror "$work/processes.c" -o "$work/processes" "${flags[@]}"
expect second "$("$prefix/bin/tpfsdp-run" -n 3 "$work/processes" | sort)" "$(printf 'rank %d of 3, by shm\n' 0 1 2)"

cmake -S tests/consumers -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/cmake"
"$work/cmake/consumer"
echo "install: plain, pkg-config, README (2), CMake: 5 passed, 0 failed, 0 skipped"
