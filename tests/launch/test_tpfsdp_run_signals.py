# SPDX-License-Identifier: Apache-2.0
"""tpfsdp-run: signals to the program itself, its death, and how ranks are stopped."""
import fcntl
import os
import pathlib
import pty
import signal
import sys
import termios

import pytest
from conftest import children_of, lines_of, own_lines, state_of, wait_until

UP = ': > $NOTES/up.$RANK; '
FOR_EVER = 'while :; do sleep 0.05; done'


def start_ranks(launcher, *options, program, ranks=2, **keywords):
    """Once all ranks are up."""
    process = launcher.start("-n", ranks, *options, program=program, **keywords)
    launcher.wait_for_notes(*(f"up.{rank}" for rank in range(ranks)))
    return process


def end(process):
    """(exit code, its own lines)"""
    _, errors = process.communicate()
    return process.returncode, own_lines(errors)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signals_are_passed_on(launcher, name):
    catch = f"trap 'echo got {name} >&2; exit 0' {name.removeprefix('SIG')}; "
    process = start_ranks(launcher, program=catch + UP + FOR_EVER)
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate()
    assert process.returncode == 0
    assert own_lines(errors) == [f"passing {name} on to 2 ranks"]
    # The shell may also tell of its child, which got the signal too.
    assert lines_of(errors, 0)[-1] == lines_of(errors, 1)[-1] == f"got {name}"


def test_a_signal_that_ends_the_ranks_is_the_exit_code(launcher):
    program = [sys.executable, "-c", "import os, time\nopen(os.environ['NOTES'] + '/up.' + os.environ['RANK'], 'w')\n"
                                     "time.sleep(1000)"]
    process = start_ranks(launcher, program=program)
    # KeyboardInterrupt may come before the sleep; it ends Python either way.
    process.send_signal(signal.SIGINT)
    assert end(process) == (128 + signal.SIGINT, ["passing SIGINT on to 2 ranks"])


def test_control_c_at_a_terminal(launcher):
    ours, theirs = pty.openpty()
    script = 'read -r line; trap "echo got it; exit 7" INT; [ -z "$line" ] && ' + UP + FOR_EVER

    def take_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start_ranks(launcher, program=script, stdin=theirs, stdout=theirs, stderr=theirs,
                          preexec_fn=take_terminal)
    os.close(theirs)
    os.write(ours, b"\x03")
    assert process.wait() == 128 + signal.SIGINT
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    assert b"tpfsdp-run: passing SIGINT on to 2 ranks" in text  # after the ^C of the terminal
    assert text.count(b"got it") == 2


def test_no_restart_after_a_signal(launcher):
    process = start_ranks(launcher, "--restarts", 3, program=UP + FOR_EVER)
    process.send_signal(signal.SIGTERM)
    assert end(process) == (128 + signal.SIGTERM, ["passing SIGTERM on to 2 ranks"])


def test_a_second_interrupt_kills(launcher):
    catch = "trap ': > $NOTES/caught.$RANK' INT; trap '' TERM; "
    process = start_ranks(launcher, "--grace", 1000, program=catch + UP + FOR_EVER)
    process.send_signal(signal.SIGINT)
    launcher.wait_for_notes("caught.0", "caught.1")
    process.send_signal(signal.SIGINT)
    assert end(process) == (128 + signal.SIGINT,
                            ["passing SIGINT on to 2 ranks", "a second SIGINT: killing 2 ranks"])


def test_ranks_that_do_not_end_are_terminated_then_killed(launcher):
    catch = "trap '' INT; [ $RANK = 0 ] || trap '' TERM; "
    process = start_ranks(launcher, "--grace", 0.1, ranks=3, program=catch + UP + FOR_EVER)
    process.send_signal(signal.SIGINT)
    assert end(process) == (128 + signal.SIGINT, ["passing SIGINT on to 3 ranks",
                                                  "3 ranks did not end within 0.1 s: SIGTERM",
                                                  "2 ranks did not end within 2 s of SIGTERM: SIGKILL"])


def test_survivors_have_time_for_their_own_errors(launcher):
    script = UP + """
while ! [ -e $NOTES/up.0 ] || ! [ -e $NOTES/up.1 ] || ! [ -e $NOTES/up.2 ]; do sleep 0.01; done
[ $RANK = 1 ] && exit 3
trap 'echo terminated >&2; exit 9' TERM
while ! [ -e $NOTES/told ]; do sleep 0.01; done
echo "rank 1 was lost" >&2; exit 4"""
    process = launcher.start("-n", 3, "--grace", 60, program=script)
    first = process.stderr.readline()
    assert own_lines(first) == ["rank 1 (pid P) exited with code 3 after T s; stopping 2 other ranks"]
    (launcher.notes / "told").touch()
    errors = process.stderr.read()
    assert process.wait() == 3
    assert lines_of(errors, 0) == lines_of(errors, 2) == ["rank 1 was lost"]
    assert own_lines(errors) == ["the first failure: rank 1 (pid P) exited with code 3 after T s"]


def test_the_first_of_several_failures_is_told(launcher):
    script = 'echo $$ > $NOTES/pid.$RANK; ' + UP + 'while ! [ -e $NOTES/end.$RANK ]; do sleep 0.01; done; exit 1$RANK'
    process = start_ranks(launcher, ranks=4, program=script)
    process.send_signal(signal.SIGSTOP)
    for rank in (2, 0, 3, 1):
        (launcher.notes / f"end.{rank}").touch()
        pid = int(launcher.note(f"pid.{rank}"))
        wait_until(lambda pid=pid: state_of(pid) == "Z", f"rank {rank} ends")
    process.send_signal(signal.SIGCONT)
    assert end(process) == (12, ["rank 2 (pid P) exited with code 12 after T s; stopping 3 other ranks"])


def test_stopped_ranks_are_stopped_for_good(launcher):
    process = start_ranks(launcher, "--grace", 0, program='echo $$ > $NOTES/pid.$RANK; ' + UP + FOR_EVER)
    pids = [int(launcher.note(f"pid.{rank}")) for rank in range(2)]
    os.kill(pids[1], signal.SIGSTOP)
    wait_until(lambda: state_of(pids[1]) == "T", "rank 1 stops")
    os.kill(pids[0], signal.SIGKILL)
    assert end(process) == (137, ["rank 0 (pid P) was killed by SIGKILL after T s; stopping 1 other rank",
                                  "1 rank did not end within 0 s: SIGTERM"])


def test_stop_and_continue(launcher):
    # No shell here: one that stops while it starts a child shows another state.
    code = """
import os, time
notes = os.environ["NOTES"] + "/"
open(notes + "up." + os.environ["RANK"], "w").write(str(os.getpid()))
while not os.path.exists(notes + "go"):
    time.sleep(0.01)"""
    process = launcher.start("-n", 2, program=[sys.executable, "-c", code])
    pids = [int(wait_until(lambda name=f"up.{rank}": (launcher.notes / name).exists() and launcher.note(name), "up"))
            for rank in range(2)]
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(state_of(pid) == "T" for pid in [process.pid, *pids]), "all stop")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: all(state_of(pid) != "T" for pid in [process.pid, *pids]), "all continue")
    (launcher.notes / "go").touch()
    assert end(process) == (0, [])


def test_user_signals_stop_nobody(launcher):
    catch = "trap ': > $NOTES/usr1.$RANK' USR1; trap ': > $NOTES/usr2.$RANK' USR2; "
    process = start_ranks(launcher, "--grace", 0, program=catch + UP + 'while ! [ -e $NOTES/go ]; do sleep 0.01; done')
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGUSR2)
    launcher.wait_for_notes("usr1.0", "usr1.1", "usr2.0", "usr2.1")
    (launcher.notes / "go").touch()
    assert end(process) == (0, [])


def test_ignored_signals_stay_ignored(launcher):
    process = start_ranks(launcher, program=UP + 'while ! [ -e $NOTES/go ]; do sleep 0.01; done',
                          preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR2)  # read after it; the shell dies of this one, so the first had no effect
    assert end(process)[0] == 128 + signal.SIGUSR2


@pytest.mark.parametrize("group", [False, True])
def test_ranks_die_with_the_launcher(launcher, group):
    # With a child each, which neither gets a signal at its parent's death.
    script = 'sh -c "' + FOR_EVER + '" "$1" & ' + UP + FOR_EVER
    process = start_ranks(launcher, ranks=3, program=script)
    assert len(launcher.processes()) >= 1 + 1 + 3 + 3  # the launcher, its keeper, ranks and their children
    assert len(list(launcher.private.iterdir())) == 1
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    launcher.expect_nothing_left()


def kill_keeper(process):
    keepers = wait_until(lambda: [x for x in children_of(process.pid)
                                  if pathlib.Path(f"/proc/{x}/comm").read_text() == "tpfsdp-keeper\n"], "a keeper")
    os.kill(keepers[0], signal.SIGKILL)
    wait_until(lambda: state_of(keepers[0]) == "", "the keeper is reaped")


def test_the_directory_goes_though_the_keeper_was_killed(launcher):
    process = start_ranks(launcher, program=UP + 'while ! [ -e $NOTES/go ]; do sleep 0.01; done')
    kill_keeper(process)
    (launcher.notes / "go").touch()
    assert end(process) == (0, [])


def test_ranks_die_even_without_the_keeper(launcher):
    process = start_ranks(launcher, program=UP + FOR_EVER)
    kill_keeper(process)
    process.kill()
    wait_until(lambda: not launcher.processes(), "the ranks end")
    left = list(launcher.private.iterdir())  # nobody was there to remove it
    assert len(left) == 1
    left[0].rmdir()
