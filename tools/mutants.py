#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the library with one known fault at a time, and expects a named test to notice.

  tools/mutants.py [NAME...]

The tables are tests/mutants.toml and, by subject, tests/mutants/*.toml. A fault is a place in the sources under
`#ifdef TPFSDP_MUTANT_<NAME>`. Each is built into build/mutants (one folder, configured anew per fault; a compiler cache
makes that cheap). Without a fault the named tests must pass; with it they must fail, crash or hang. The last line is
"N/N killed".
"""
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
TABLES = [ROOT / "tests" / "mutants.toml", *sorted((ROOT / "tests" / "mutants").glob("*.toml"))]
LIMIT_S = 120  # a fault that hangs its test is noticed, too
KEYS = {"name", "what", "target", "filter", "environment"}


def read_table():
    mutants = [m for table in TABLES for m in tomllib.loads(table.read_text()).get("mutant", [])]
    for m in mutants:
        if not {"name", "what", "target"} <= set(m) <= KEYS:
            sys.exit(f"mutants: {m.get('name', m)} needs name, what, target; may have filter, environment")
    listed = [m["name"] for m in mutants]
    sources = [f for top in ("core", "capi") for f in (ROOT / top).rglob("*") if f.suffix in (".cpp", ".hpp")]
    present = {name for f in sources for name in re.findall(r"\bTPFSDP_MUTANT_(\w+)", f.read_text())}
    for kind, names in (("listed twice", {n for n in listed if listed.count(n) > 1}),
                        ("listed, but in no source", set(listed) - present),
                        ("in the sources, but not listed", present - set(listed))):
        if names:
            sys.exit(f"mutants: {kind}: {', '.join(sorted(names))}")
    return mutants


def build(mutant, targets):
    for command in (["cmake", "--preset", "dev", "-B", FOLDER, f"-DTPFSDP_MUTANT={mutant}", "-DTPFSDP_BUILD_PYTHON=OFF"],
                    ["cmake", "--build", FOLDER, "-j", str(os.cpu_count()), "--target", *targets]):
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"mutants: {mutant or 'without a fault'} does not build\n{(done.stdout + done.stderr)[-4000:]}")


def run(m):
    """How its test ended: 'passed', 'failed' or 'hung'; and the output."""
    command = [FOLDER / m["target"]] + ([f"--gtest_filter={m['filter']}"] if "filter" in m else [])
    environment = {**os.environ, "TPFSDP_LIBRARY": str(FOLDER / "libtpfsdp.so"), **m.get("environment", {})}
    try:
        done = subprocess.run(command, cwd=FOLDER, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S)
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        return "hung", output.decode(errors="replace") if isinstance(output, bytes) else output
    return ("failed" if done.returncode else "passed"), done.stdout


def main():
    mutants = read_table()
    if unknown := set(sys.argv[1:]) - {m["name"] for m in mutants}:
        sys.exit(f"mutants: in no table: {', '.join(sorted(unknown))}")
    mutants = [m for m in mutants if m["name"] in sys.argv[1:] or not sys.argv[1:]]
    if not mutants:
        sys.exit("mutants: the table is empty")

    build("", sorted({m["target"] for m in mutants}))
    for m in mutants:
        outcome, output = run(m)
        if outcome != "passed" or re.search(r"^\[==========\] Running 0 tests", output, re.M):
            sys.exit(f"mutants: {m['target']} {m.get('filter', '')} does not pass without a fault\n{output[-4000:]}")

    killed = 0
    for m in mutants:
        build(m["name"], [m["target"]])
        outcome, _ = run(m)
        killed += outcome != "passed"
        verdict = {"passed": "SURVIVED", "failed": "killed", "hung": "killed (hung)"}[outcome]
        print(f"{verdict:14} {m['name']}: {m['what']}  [{m['target']} {m.get('filter', '')}]", flush=True)
    print(f"{killed}/{len(mutants)} killed")
    sys.exit(killed != len(mutants))


if __name__ == "__main__":
    main()
