# SPDX-License-Identifier: Apache-2.0
"""Runs the program of the environment variable TPFSDP_RUN. After every test nothing of it may be left: no private
directory, and no process with the test's mark in its command line."""
import faulthandler
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid

import pytest

LIMIT_S = 120  # of one test
PROGRAM = os.environ.get("TPFSDP_RUN", "")


def wait_until(condition, what, limit_s=60):
    """Polls; for what can be seen only from outside, in /proc or in the file system."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end, f"did not happen within {limit_s} s: {what}"
        time.sleep(0.01)
    return value


def state_of(pid):
    """The letter of /proc: R, S, T, Z...; "" if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid):
    return [int(x) for x in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Launcher:
    """Starts tpfsdp-run, with a folder of its own for private directories and one where ranks leave marks."""

    def __init__(self, folder):
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.private = folder / "private"
        self.notes = folder / "notes"
        self.private.mkdir()
        self.notes.mkdir()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.private), "NOTES": str(self.notes)}
        del self.environment["TPFSDP_RUN"]
        self.started = []

    def start(self, *options, program, **keywords):
        """The program is the text of a shell script, or a list; the mark is its last argument."""
        command = [program, "sh"] if isinstance(program, str) else program
        command = ["sh", "-c", *command] if isinstance(program, str) else command
        keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "stdin": subprocess.DEVNULL,
                    "env": self.environment, "start_new_session": True, **keywords}
        process = subprocess.Popen([PROGRAM, *map(str, options), "--", *command, self.mark], **keywords)
        self.started.append(process)
        return process

    def run(self, *options, program, **keywords):
        """(exit code, standard output, standard error) at its end."""
        given = keywords.pop("input", None)
        if given is not None:
            keywords["stdin"] = subprocess.PIPE
        process = self.start(*options, program=program, **keywords)
        output, errors = process.communicate(given, timeout=LIMIT_S)
        return process.returncode, output, errors

    def python(self, *options, code, **keywords):
        return self.run(*options, program=[sys.executable, "-c", code], **keywords)

    def wait_for_notes(self, *names):
        wait_until(lambda: all((self.notes / name).exists() for name in names), f"notes {names}")

    def note(self, name):
        return (self.notes / name).read_text().strip()

    def processes(self):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
                except (FileNotFoundError, ProcessLookupError):
                    pass
        return found

    def expect_nothing_left(self):
        wait_until(lambda: not self.processes(), "all processes end")
        wait_until(lambda: not list(self.private.iterdir()), "the private directory is removed")


@pytest.fixture
def launcher(tmp_path):
    assert PROGRAM and os.access(PROGRAM, os.X_OK), "TPFSDP_RUN must name the program tpfsdp-run"
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    launcher = Launcher(tmp_path)
    try:
        yield launcher
        launcher.expect_nothing_left()
    finally:
        for process in launcher.started:
            process.kill()
            process.communicate()
        for pid in launcher.processes():
            os.kill(pid, signal.SIGKILL)
        faulthandler.cancel_dump_traceback_later()


def own_lines(errors):
    """What tpfsdp-run itself said, without pids and times."""
    lines = [x.removeprefix("tpfsdp-run: ") for x in errors.splitlines() if x.startswith("tpfsdp-run: ")]
    return [re.sub(r"after \d+\.\d s", "after T s", re.sub(r"\(pid \d+\)", "(pid P)", x)) for x in lines]


def lines_of(errors, rank):
    tag = f"[{rank}] "
    return [x.removeprefix(tag) for x in errors.splitlines() if x.startswith(tag)]
