# SPDX-License-Identifier: Apache-2.0
"""tpfsdp-run: how ranks are started, and what their ends make of it."""
import json
import os
import pathlib
import re
import stat
import subprocess

import pytest
from conftest import PROGRAM, children_of, lines_of, own_lines, state_of, wait_until

ENVIRONMENT = """
import json, os
record = {k: v for k, v in os.environ.items() if k.startswith("TPFSDP_") or "RANK" in k or "WORLD" in k}
record["mode"] = os.stat(os.environ["TPFSDP_STORE"].removeprefix("file:")).st_mode
record["group"] = os.getpgid(0) == os.getpid()
os.write(1, (json.dumps(record) + chr(10)).encode())
"""
# Waits until a note is there.
AWAIT = 'await() { while ! [ -e "$NOTES/$1" ]; do sleep 0.01; done; }; '


def test_environment_of_each_rank(launcher):
    code, output, errors = launcher.python("-n", 3, code=ENVIRONMENT)
    assert (code, errors) == (0, "")
    records = sorted((json.loads(x) for x in output.splitlines()), key=lambda x: x["RANK"])
    run_id, store = records[0]["TPFSDP_RUN_ID"], records[0]["TPFSDP_STORE"]
    assert re.fullmatch("[0-9a-f]{32}", run_id)
    assert re.fullmatch(re.escape(f"file:{launcher.private}/tpfsdp-") + r"\w{6}", store)
    for rank, record in enumerate(records):
        assert record == {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3",
                          "TPFSDP_STORE": store, "TPFSDP_RUN_ID": run_id, "TPFSDP_RESTART_COUNT": "0",
                          "mode": stat.S_IFDIR | 0o700, "group": True}
    _, output, _ = launcher.python(code=ENVIRONMENT)
    assert json.loads(output)["TPFSDP_RUN_ID"] != run_id
    assert json.loads(output)["WORLD_SIZE"] == "1"


def test_only_the_standard_descriptors_are_inherited(launcher):
    code, output, _ = launcher.python("-n", 2, code="""
import os
def is_open(fd):
    try:
        return os.fstat(fd) is not None
    except OSError:
        return False
os.write(1, f"{[fd for fd in range(4096) if is_open(fd)]}{chr(10)}".encode())""")
    assert (code, output) == (0, "[0, 1, 2]\n" * 2)


def test_signals_of_ranks_are_as_before(launcher):
    masks = "grep -h -E 'Sig(Blk|Ign)' /proc/self/status"
    plain = subprocess.run(["sh", "-c", masks], capture_output=True, text=True, check=True).stdout
    assert launcher.run(program=masks) == (0, plain, "")


def test_rank_0_reads_the_standard_input(launcher):
    code, output, _ = launcher.run("-n", 3, program='printf "%s" "$RANK:$(cat) "', input="some text")
    assert code == 0
    assert sorted(output.split(" ")) == ["", "0:some", "1:", "2:", "text"]


@pytest.mark.parametrize("end, code, how", [
    ("exit 3", 3, "exited with code 3"),
    ("kill -SEGV $$", 139, "was killed by SIGSEGV"),
    ("kill -KILL $$", 137, "was killed by SIGKILL"),
    ("exit 255", 255, "exited with code 255"),
])
def test_first_failure_is_the_exit_code(launcher, end, code, how):
    script = AWAIT + f'if [ $RANK = 2 ]; then {end}; fi; await never'
    got, _, errors = launcher.run("-n", 4, "--grace", 0, program=script)
    assert got == code
    assert own_lines(errors)[0] == f"rank 2 (pid P) {how} after T s; stopping 3 other ranks"


def test_failure_of_the_last_one_running(launcher):
    code, _, errors = launcher.run(program="exit 9")
    assert (code, own_lines(errors)) == (9, ["rank 0 (pid P) exited with code 9 after T s"])
    script = AWAIT + 'if [ $RANK = 0 ]; then exit 4; fi; await never'
    code, _, errors = launcher.run("-n", 2, "--grace", 0, program=script)
    assert code == 4
    assert own_lines(errors)[0] == "rank 0 (pid P) exited with code 4 after T s; stopping 1 other rank"


def test_first_error_is_read_last(launcher):
    script = AWAIT + """
if [ $RANK = 1 ]; then
  await ready.0; for i in $(seq 25); do echo "why $i" >&2; done; exit 5
fi
echo early >&2; : > $NOTES/ready.$RANK
await failed; echo "lost rank 1" >&2; exit 6"""
    process = launcher.start("-n", 2, "--grace", 60, program=script)
    lines = iter(process.stderr.readline, "")
    before = [next(lines)]
    while not before[-1].startswith("tpfsdp-run: "):
        before.append(next(lines))
    (launcher.notes / "failed").touch()
    after = list(lines)
    assert process.wait() == 5
    assert before[:-1] == ["[0] early\n"] + [f"[1] why {i}\n" for i in range(1, 26)]
    assert own_lines(before[-1]) == ["rank 1 (pid P) exited with code 5 after T s; stopping 1 other rank"]
    assert after[0] == "[0] lost rank 1\n"
    assert own_lines(after[1]) == [
        "the first failure: rank 1 (pid P) exited with code 5 after T s; its last lines were:"]
    assert after[2:] == [f"[1] why {i}\n" for i in range(6, 26)]


def test_last_lines_are_not_repeated_in_vain(launcher):
    code, _, errors = launcher.run("-n", 3, program='[ $RANK = 1 ] || exit 0; echo why >&2; exit 5')
    assert (code, lines_of(errors, 1), len(own_lines(errors))) == (5, ["why"], 1)


def test_ranks_that_end_well_stop_nobody(launcher):
    process = launcher.start("-n", 3, program=AWAIT + ': > $NOTES/up.$RANK; [ $RANK = 0 ] && exit 0; await go')
    launcher.wait_for_notes("up.0", "up.1", "up.2")
    # Rank 0 is gone and reaped: the keeper and two ranks are left.
    wait_until(lambda: len(children_of(process.pid)) == 3, "rank 0 ends")
    assert "Z" not in [state_of(x) for x in children_of(process.pid)]
    (launcher.notes / "go").touch()
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_what_a_rank_leaves_in_its_group_is_killed(launcher):
    # $0 and the mark are in its command line, so that the fixture would find it.
    code, output, _ = launcher.run("-n", 2, program='sh -c "while :; do sleep 1; done" "$1" & echo started')
    assert (code, output) == (0, "started\nstarted\n")


def test_a_daemon_that_holds_the_standard_error_holds_up_nobody(launcher):
    daemon = "echo up >&2; : > $NOTES/daemon; while ! [ -e $NOTES/end ]; do echo noise >&2; done"
    code, _, errors = launcher.run(program=f"setsid sh -c '{daemon}' $1 & " + AWAIT + "await daemon")
    (launcher.notes / "end").touch()
    assert code == 0 and lines_of(errors, 0)[0] == "up"


def test_restarts(launcher):
    script = 'echo "$RANK $TPFSDP_RESTART_COUNT $TPFSDP_RUN_ID $TPFSDP_STORE"; [ $TPFSDP_RESTART_COUNT = 2 ]'
    code, output, errors = launcher.run("-n", 2, "--restarts", 5, program=script)
    assert code == 0
    rows = [x.split() for x in output.splitlines()]
    assert {tuple(x[:2]) for x in rows} >= {("0", "2"), ("1", "2")} and {x[1] for x in rows} == {"0", "1", "2"}
    assert len({x[2] for x in rows}) == 1
    assert len({x[3] for x in rows}) == 3
    assert [x for x in own_lines(errors) if x.startswith("restart")] == ["restart 1 of 5", "restart 2 of 5"]


def test_restarts_are_used_up(launcher):
    code, output, errors = launcher.run("--restarts", 2, program="echo try; exit 7")
    assert (code, output) == (7, "try\n" * 3)
    failure = "rank 0 (pid P) exited with code 7 after T s"
    assert own_lines(errors) == [failure, "restart 1 of 2", failure, "restart 2 of 2", failure]


def test_restart_stops_all_ranks_first(launcher):
    script = AWAIT + """
[ $RANK = 0 ] && echo "$TPFSDP_RESTART_COUNT $$" >> $NOTES/pids
if [ $TPFSDP_RESTART_COUNT = 1 ]; then
  ! [ $RANK = 0 ] || ! kill -0 $(grep '^0 ' $NOTES/pids | cut -d' ' -f2) 2>/dev/null; exit
fi
if [ $RANK = 0 ]; then trap '' TERM; : > $NOTES/up; await never; fi
await up; exit 1"""
    code, _, errors = launcher.run("-n", 2, "--grace", 0, "--restarts", 1, program=script)
    assert code == 0
    assert own_lines(errors)[1:3] == ["1 rank did not end within 0 s: SIGTERM",
                                      "1 rank did not end within 2 s of SIGTERM: SIGKILL"]


def test_a_program_that_cannot_be_started(launcher, tmp_path):
    code, _, errors = launcher.run("-n", 3, "--restarts", 3, program=["/nowhere/program"])
    assert (code, own_lines(errors)) == (127, ['cannot start "/nowhere/program": No such file or directory'])
    text = tmp_path / "text"
    text.write_text("true\n")
    for path in (text, tmp_path):
        code, _, errors = launcher.run("-n", 3, program=[str(path)])
        assert (code, own_lines(errors)) == (126, [f'cannot start "{path}": Permission denied'])


@pytest.mark.parametrize("options, text", [
    (["-n", "0", "true"], '-n is "0"; it is a number of ranks, 1 to 1024'),
    (["-n", "-1", "true"], '-n is "-1"; it is'),
    (["-n", "4x", "true"], '-n is "4x"; it is'),
    (["-n", "", "true"], '-n is ""; it is'),
    (["-n", "99999999999999999999", "true"], "it is a number of ranks"),
    (["--restarts", "-1", "true"], '--restarts is "-1"; it is a number of restarts, at least 0'),
    (["--grace", "-1", "true"], '--grace is "-1"; it is a number of seconds, 0 to 86400'),
    (["--grace", "inf", "true"], '--grace is "inf"; it is'),
    (["--grace", "1.2.3", "true"], '--grace is "1.2.3"; it is'),
    (["-n", "2"], "no PROGRAM was given"),
    (["--frobnicate", "true"], "--frobnicate"),
])
def test_bad_command_lines(options, text):
    done = subprocess.run([PROGRAM, *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_help_and_version():
    usage = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True)
    assert usage.stdout.startswith("usage: tpfsdp-run [-n N] [--restarts K]") and usage.stderr == ""
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    header = (pathlib.Path(__file__).parents[2] / "include" / "tpfsdp" / "version.h").read_text()
    assert version == "tpfsdp-run " + ".".join(re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)) + "\n"


def test_options_of_the_program_are_its_own(launcher):
    done = subprocess.run([PROGRAM, "echo", "-n", "--help", "x"], capture_output=True, text=True, check=True)
    assert done.stdout == "--help x"


def test_64_ranks(launcher):
    code, output, errors = launcher.run("-n", 64, program='echo $RANK; echo error $RANK >&2')
    assert code == 0
    assert sorted(map(int, output.split())) == list(range(64))
    assert sorted(errors.splitlines()) == sorted(f"[{rank}] error {rank}" for rank in range(64))


def test_private_directory_without_a_runtime_directory(launcher, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "missing"), "TMPDIR": str(other)}
    code, output, _ = launcher.run(program='echo $TPFSDP_STORE; : > "${TPFSDP_STORE#file:}/left"', env=environment)
    assert code == 0 and output.startswith(f"file:{other}/tpfsdp-")
    assert list(other.iterdir()) == []
