#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD_DIR [variants]: the protocol of core/backends/host on every configuration of its model (seconds). With
# `variants` also every mistake on every configuration but the largest (minutes): a mistake must be caught somewhere,
# and a control (see README) nowhere. Exit 1 if not.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
build=${1:?usage: run.sh BUILD_DIR [variants]}
mkdir -p "$build" || exit 1
cxx=${CXX:-g++}
"$cxx" -O2 -std=c++20 -o "$build/engine" "$here/engine.cpp" || exit 1
"$cxx" -O2 -std=c++20 -o "$build/threads" "$here/threads.cpp" -lpthread || exit 1

ok=0
bad=0
verdict() {  # verdict TEXT GOOD
  if [ "$2" = 1 ]; then ok=$((ok + 1)); else bad=$((bad + 1)); echo "FAILED $1"; fi
}

configs=$("$build/engine" list | awk '/^config/ {print $2}')
for config in $configs; do
  line=$("$build/engine" "$config" | head -n 1)
  case $line in *" ok:"*) verdict "$line" 1 ;; *) verdict "$config: $line" 0 ;; esac
done
if python3 "$here/wake.py" >"$build/wake.log"; then verdict wake 1; else verdict "wake: $(cat "$build/wake.log")" 0; fi
for ranks in 2 4; do
  if "$build/threads" $ranks 100 1 >"$build/threads.log"; then verdict threads 1; else verdict "threads: $(cat "$build/threads.log")" 0; fi
done

if [ "$2" = variants ]; then
  controls=" done_before_error error_no_last_look_but_tagged flow_control ring_d1_r4 ring_d2_r6 ring_d3_r7 "
  for variant in $("$build/engine" list | awk '/^variant/ {print $2}'); do
    caught=0
    for config in $configs; do
      [ "$config" = p3f2 ] && continue
      line=$(timeout 60 "$build/engine" "$config" "$variant" 250000 | head -n 1)
      case $line in *" ok:"* | *"NOT EXHAUSTIVE"* | "") ;; *) caught=1; break ;; esac
    done
    case $controls in *" $variant "*) wanted=0 ;; *) wanted=1 ;; esac
    [ "$caught" = "$wanted" ] && verdict "$variant" 1 || verdict "$variant: caught $caught, wanted $wanted" 0
  done
fi
echo "models: $ok passed, $bad failed, 0 skipped"
[ "$bad" = 0 ]
