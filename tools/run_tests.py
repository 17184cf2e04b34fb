#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs everything that CI runs, and counts it.

  tools/run_tests.py [--full] [SUITE...]

Each suite prints one line; what failed is shown at the end, and the last line is the sum: N passed, N failed,
N skipped. A skip that tests/allowed_skips.txt does not list is a failure. Logs are in build/log/.
"""
import argparse
import dataclasses
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOG = BUILD / "log"
VENV_PYTHON = BUILD / "venv" / "bin" / "python"
JOBS = str(os.cpu_count())
ALLOWED_SKIPS = ROOT / "tests" / "allowed_skips.txt"
SUITE_LIMIT_S = 3600
TAIL_LINES = 40

SANITIZER_OPTIONS = {
    "asan": {"ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
    "tsan": {"TSAN_OPTIONS": "second_deadlock_stack=1"},
}


@dataclasses.dataclass
class Result:
    """The cases of one suite: name, 'passed', 'failed' or 'skipped', and what to show of it."""
    cases: list = dataclasses.field(default_factory=list)

    def add(self, name, outcome, text=""):
        self.cases.append((name, outcome, text))

    def count(self, outcome):
        return sum(case[1] == outcome for case in self.cases)


def allowed_skips():
    """Patterns of the allow-list: '<glob over suite/test>: reason' per line."""
    lines = ALLOWED_SKIPS.read_text().splitlines() if ALLOWED_SKIPS.exists() else []
    return [x.split(": ")[0].strip() for x in lines if x.strip() and not x.startswith("#")]


def tail(text):
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])


def execute(name, command, environment=None):
    """(ended well, output); the output is kept in build/log/<name>.log."""
    LOG.mkdir(parents=True, exist_ok=True)
    path = LOG / f"{name}.log"
    environment = {**os.environ, **(environment or {})}
    with open(path, "w") as log:
        try:
            done = subprocess.run([str(x) for x in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=subprocess.STDOUT, env=environment, timeout=SUITE_LIMIT_S)
            ended_well = done.returncode == 0
        except subprocess.TimeoutExpired:
            log.write(f"\nstopped after {SUITE_LIMIT_S} s\n")
            ended_well = False
        except OSError as error:
            log.write(f"{error}\n")
            ended_well = False
    return ended_well, path.read_text(errors="replace")


def check(name, *command):
    """A suite that is one program: its counts if its last line has them, else one case."""
    ended_well, output = execute(name, command)
    result = Result()
    last = output.rstrip().splitlines()[-1:] or [""]
    counts = re.fullmatch(r".*?(\d+) passed, (\d+) failed, (\d+) skipped\W*", last[0])
    if counts and ended_well:
        passed, failed, skipped = map(int, counts.groups())
        result.cases += [(name, "passed", "")] * passed + [(name, "failed", tail(output))] * failed
        result.cases += [(name, "skipped", "")] * skipped
    else:
        result.add(name, "passed" if ended_well else "failed", tail(output))
    return result


def build(preset, *targets, label=None):
    """Builds the targets, or the tests of a label, or all. None, or the result that says why it does not build."""
    result = Result()
    ended_well, output = execute(f"{preset}-configure", ["cmake", "--preset", preset])
    if not ended_well:
        result.add(f"{preset} configure", "failed", tail(output))
        return result
    if label:
        listed = subprocess.run(["ctest", "--test-dir", f"build/{preset}", "-N", "-L", f"^{label}$"], cwd=ROOT,
                                capture_output=True, text=True).stdout
        # A test is called like its executable; a further registration of one has a suffix.
        targets = sorted({re.sub("_(full|shm|processes)$", "", name)
                          for name in re.findall(r"Test +#\d+: (\w+)", listed)})
    ended_well, output = execute(f"{preset}-build", ["cmake", "--build", f"build/{preset}", "-j", JOBS,
                                                     *(["--target", *targets] if targets else [])])
    if not ended_well:
        result.add(f"{preset} build", "failed", tail(output))
        return result
    return None


def read_googletest(path, test, result):
    """Adds the cases of one executable; returns how many of them failed."""
    failed = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{test}:{case.get('classname')}.{case.get('name')}"
        failures = case.findall("failure")
        skip = case.find("skipped")
        if failures:
            failed += 1
            result.add(name, "failed", tail("\n".join(f.get("message", "") for f in failures)))
        elif skip is not None or case.get("result") == "skipped" or case.get("status") == "notrun":
            result.add(name, "skipped", skip.get("message", "") if skip is not None else "disabled")
        else:
            result.add(name, "passed")
    return failed


def ctest(name, preset, label, environment=None):
    # All of what fast tests are part of must compile; other labels build what they run.
    if broken := build(preset, label=None if label == "fast" else label):
        return broken
    xml = LOG / f"{name}.xml"
    cases = LOG / f"{name}.cases"
    shutil.rmtree(cases, ignore_errors=True)
    cases.mkdir(parents=True)
    xml.unlink(missing_ok=True)
    environment = {**SANITIZER_OPTIONS.get(preset, {}), **(environment or {}), "GTEST_OUTPUT": f"xml:{cases}/"}
    _, output = execute(name, ["ctest", "--test-dir", f"build/{preset}", "-L", f"^{label}$", "-j", JOBS,
                               "--no-tests=error", "--output-on-failure", "--output-junit", xml], environment)
    result = Result()
    if not xml.exists():
        result.add(name, "failed", tail(output))
        return result
    for test in ElementTree.parse(xml).getroot().iter("testcase"):
        title = test.get("name")
        own = cases / f"{title}.xml"
        failed = read_googletest(own, title, result) if own.exists() else 0
        text = test.findtext("system-out") or ""
        if test.get("status") == "fail":
            if not failed:  # it ended badly, whatever its cases said: a crash, a leak, a race, the time limit
                how = re.search(rf"Test +#\d+: {title} \.*(.*)", output)
                result.add(title, "failed", tail(text) + (f"\n{how.group(1)}" if how else ""))
        elif not own.exists():
            skipped = test.find("skipped") is not None or test.get("status") != "run"
            result.add(title, "skipped" if skipped else "passed", tail(text) if skipped else "")
    if not result.cases:
        result.add(name, "failed", "no test has the label " + label)
    return result


def pytest(name, folder, environment=None):
    xml = LOG / f"{name}.xml"
    xml.unlink(missing_ok=True)
    ended_well, output = execute(name, [VENV_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder,
                                        f"--junit-xml={xml}"], {"PYTHONDONTWRITEBYTECODE": "1", **(environment or {})})
    result = Result()
    for case in ElementTree.parse(xml).getroot().iter("testcase") if xml.exists() else ():
        title = f"{case.get('classname')}.{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skip = case.find("skipped")
        if bad is not None:
            result.add(title, "failed", tail(bad.text or bad.get("message", "")))
        else:
            result.add(title, "passed" if skip is None else "skipped", "" if skip is None else skip.get("message", ""))
    if not ended_well and not result.count("failed"):
        result.add("pytest", "failed", tail(output))
    return result


def python_tests():
    ended_well, output = execute("python-install", ["tools/install_binding.sh"])
    if ended_well:
        return pytest("python", "bindings/python/tests")
    result = Result()
    result.add("installing the binding", "failed", tail(output))
    return result


def launch_tests():
    return build("dev", "tpfsdp-run") or pytest("launch", "tests/launch",
                                                {"TPFSDP_RUN": str(BUILD / "dev" / "tpfsdp-run")})


def kill_matrix(name, *options):
    return build("dev", "kill_rank") or check(name, VENV_PYTHON, "tools/kill_matrix.py", *options)


def exports():
    """Of the release build, since that is what ships; the ABI files against it too."""
    if broken := build("release", "tpfsdp"):
        return broken
    library = BUILD / "release" / "libtpfsdp.so"
    result = check("exports", "tools/check_exports.sh", library)
    result.cases += check("abi", VENV_PYTHON, "tools/abi.py", "compare", library).cases
    return result


SUITES = {
    "headers": lambda: check("headers", VENV_PYTHON, "tools/check_headers.py"),
    "layers": lambda: check("layers", VENV_PYTHON, "tools/check_layers.py"),
    "exports": exports,
    "install": lambda: build("release", "tpfsdp", "tpfsdp-run") or check("install", "tools/check_install.sh", BUILD / "release"),
    "models": lambda: check("models", "tests/models/run.sh", BUILD / "models"),
    "dev": lambda: ctest("dev", "dev", "fast"),
    "poison": lambda: ctest("poison", "dev", "fsdp", {"TPFSDP_DEBUG": "poison"}),
    "readonly": lambda: ctest("readonly", "dev", "fsdp", {"TPFSDP_DEBUG": "readonly"}),
    "shared": lambda: ctest("shared", "dev", "fsdp", {"TPFSDP_TEST_MODE": "shared"}),
    "mapped": lambda: ctest("mapped", "dev", "fsdp", {"TPFSDP_TEST_MODE": "mapped"}),
    "python": python_tests,
    "launch": launch_tests,
    "kill": lambda: kill_matrix("kill"),
    "asan": lambda: ctest("asan", "asan", "fast"),
    "tsan": lambda: ctest("tsan", "tsan", "tsan"),
}
FULL_SUITES = {
    "tsan shared": lambda: ctest("tsan-shared", "tsan", "fsdp", {"TPFSDP_TEST_MODE": "shared"}),
    "tsan mapped": lambda: ctest("tsan-mapped", "tsan", "fsdp", {"TPFSDP_TEST_MODE": "mapped"}),
    "release": lambda: ctest("release", "release", "fast"),
    "long": lambda: ctest("long", "dev", "full"),
    "model variants": lambda: check("model-variants", "tests/models/run.sh", BUILD / "models", "variants"),
    "kill full": lambda: kill_matrix("kill-full", "--full"),
    "conformance": lambda: check("conformance", VENV_PYTHON, "tools/conformance"),
    "mutants": lambda: check("mutants", VENV_PYTHON, "tools/mutants.py"),
}


def judge_skips(suite, result):
    patterns = allowed_skips()
    for i, (name, outcome, text) in enumerate(result.cases):
        if outcome == "skipped" and not any(fnmatch.fnmatchcase(f"{suite}/{name}", p) for p in patterns):
            result.cases[i] = (name, "failed", f"skipped, and not in {ALLOWED_SKIPS.relative_to(ROOT)}: {text}")


def line(counts):
    return "{} passed, {} failed, {} skipped".format(*counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true",
                        help="also the release build, long runs, model variants, all kills, the checklist, mutants")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="of " + ", ".join([*SUITES, *FULL_SUITES]))
    arguments = parser.parse_args()
    everything = {**SUITES, **FULL_SUITES}
    if unknown := set(arguments.suites) - set(everything):
        parser.error("no such suite: " + ", ".join(sorted(unknown)))
    chosen = arguments.suites or list(everything if arguments.full else SUITES)

    failures, totals = [], [0, 0, 0]
    for suite in chosen:
        start = time.monotonic()
        result = everything[suite]()
        judge_skips(suite, result)
        counts = [result.count(x) for x in ("passed", "failed", "skipped")]
        totals = [a + b for a, b in zip(totals, counts)]
        failures += [(suite, name, text) for name, outcome, text in result.cases if outcome == "failed"]
        print(f"{suite:16} {line(counts)}  ({time.monotonic() - start:.0f} s)", flush=True)
    for suite, name, text in failures:
        print(f"\n---- {suite}: {name}\n{text}")
    if failures:
        print("\nfailed: " + ", ".join(f"{suite}/{name}" for suite, name, _ in failures))
    print(line(totals))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
