#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the shared library $1 shows to and takes from its process: it is a guest there.
set -euo pipefail
library=$1
fail() { echo "exports: $1"; exit 1; }

foreign=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $NF}' | sed 's/@.*//' | grep -v '^tpfsdp_' | head -n 5 | xargs || true)
[ -z "$foreign" ] || fail "symbols that are not ours: $foreign"

needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
extra=$(grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-[a-z0-9-]+)\.so\.[0-9]+$' <<<"$needed" | xargs || true)
[ -z "$extra" ] || fail "needs more than the C and C++ runtimes: $extra"

# It never prints, exits, aborts, installs signal handlers, or changes locale, directory, environment and limits.
banned='exit|_exit|quick_exit|abort|raise|signal|sigaction|setlocale|chdir|setenv|unsetenv|putenv|setrlimit'
banned+='|v?f?printf|f?puts|fputc|fwrite|perror|_ZSt4cerr|_ZSt4cout|_ZSt4clog'
calls=$(nm -D --undefined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | grep -xE "$banned" | xargs || true)
[ -z "$calls" ] || fail "a guest does not call: $calls"

dynamic=$(readelf -d "$library")
grep -q 'SONAME.*\[libtpfsdp\.so\.0\]' <<<"$dynamic" || fail "SONAME is not libtpfsdp.so.0"
grep -q 'NODELETE' <<<"$dynamic" || fail "not linked with -z nodelete"
grep -qE 'RPATH|RUNPATH' <<<"$dynamic" && fail "has a run-time search path"
readelf -lW "$library" | grep GNU_STACK | grep -q RWE && fail "has an executable stack"
echo "exports: $(nm -D --defined-only "$library" | grep -c ' T ') functions, $(stat -Lc %s "$library") bytes"
