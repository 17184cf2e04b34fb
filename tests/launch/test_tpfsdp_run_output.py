# SPDX-License-Identifier: Apache-2.0
"""tpfsdp-run: what becomes of the ranks' standard output and standard error."""
import os
import re
import subprocess
import sys

from conftest import lines_of, own_lines

LINE_BYTES = 16384  # longer lines come in pieces


def test_lines_are_marked_and_the_output_is_not(launcher):
    code, output, errors = launcher.run("-n", 2, program='printf "a\\nb"; printf "one\\n\\ntwo" >&2')
    assert code == 0
    assert sorted(output) == sorted("a\nba\nb")
    for rank in range(2):
        assert lines_of(errors, rank) == ["one", "", "two"]
    assert len(errors.splitlines()) == 6 and errors.endswith("\n")


def test_bytes_of_the_output_are_unchanged(launcher):
    every_byte = bytes(range(256)) * 1000
    process = launcher.start(program=[sys.executable, "-c", "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 1000)"],
                             text=False)
    assert process.communicate() == (every_byte, b"")


def test_pieces_of_a_line_are_put_together(launcher):
    script = 'for i in 1 2 3 4 5 6 7 8 9; do printf $RANK >&2; sleep 0.02; done; echo >&2'
    _, _, errors = launcher.run("-n", 3, program=script)
    assert sorted(errors.splitlines()) == [f"[{rank}] {str(rank) * 9}" for rank in range(3)]


def test_a_long_line_comes_in_pieces(launcher):
    code, _, errors = launcher.python(code=f"import sys; sys.stderr.write('x' * {2 * LINE_BYTES + 5})")
    assert code == 0
    assert [len(x) for x in lines_of(errors, 0)] == [LINE_BYTES, LINE_BYTES, 5]


def test_much_output_stays_whole_and_in_order(launcher):
    count = 20000
    code, output, errors = launcher.python("-n", 4, code=f"""
import os, sys
for i in range({count}):
    sys.stderr.write(f"line {{i}} " + "x" * (i % 90) + chr(10))
os.write(1, b"end" + chr(10).encode())""")
    assert (code, output) == (0, "end\n" * 4)
    expected = [f"line {i} " + "x" * (i % 90) for i in range(count)]
    for rank in range(4):
        assert lines_of(errors, rank) == expected
    assert len(errors.splitlines()) == 4 * count


def test_both_in_one_pipe_stay_whole_lines(launcher):
    code, output, _ = launcher.python("-n", 2, code="""
import os
for i in range(3000):
    os.write(1, b"out %d\\n" % i)
    os.write(2, b"error %d\\n" % i)""", stderr=subprocess.STDOUT)
    assert code == 0
    assert all(re.fullmatch(r"(\[[01]\] error|out) \d+", x) for x in output.splitlines())
    assert len(output.splitlines()) == 12000


WRITE_MUCH = """
import os
text = b"x" * 99 + b"\\n"
for i in range(10000):
    os.write(2, text)
open(os.environ["NOTES"] + "/written." + os.environ["RANK"], "w")
"""


def test_a_reader_that_stands_still_holds_up_nobody(launcher):
    process = launcher.start("-n", 2, program=[sys.executable, "-c", WRITE_MUCH])
    assert process.wait(timeout=100) == 0  # though nobody reads
    launcher.wait_for_notes("written.0", "written.1")
    errors = process.stderr.read()
    assert 60000 < len(errors) < 1000000
    assert re.fullmatch(r"(\[[01]\] x{99}\n)+", errors)


def test_left_out_lines_are_counted(launcher):
    await_read = 'while not os.path.exists(os.environ["NOTES"] + "/read"): time.sleep(0.01)'
    code = f"import time{WRITE_MUCH}{await_read}\nos.write(2, b'end')"
    process = launcher.start(program=[sys.executable, "-c", code])
    launcher.wait_for_notes("written.0")
    lines = iter(process.stderr.readline, "")
    seen = [next(lines)]
    while not seen[-1].startswith("tpfsdp-run: "):
        seen.append(next(lines))
    (launcher.notes / "read").touch()
    rest = list(lines)
    told = re.fullmatch(r"tpfsdp-run: (\d+) lines were left out here: nobody had read for 5 s\n", seen[-1])
    assert int(told[1]) > 0
    # What was still in the rank's pipe comes after it.
    assert len(seen) - 1 + int(told[1]) + len(rest) - 1 == 10000
    assert rest[-1] == "[0] end\n"
    assert process.wait() == 0


def test_a_failure_is_acted_on_while_nobody_reads(launcher):
    script = WRITE_MUCH + "import time\nif os.environ['RANK'] == '0': os._exit(3)\ntime.sleep(1000)"
    process = launcher.start("-n", 2, "--grace", 0, program=[sys.executable, "-c", script])
    assert process.wait(timeout=100) == 3


def test_a_reader_that_went_away(launcher):
    process = launcher.start("-n", 2, program='[ $RANK = 0 ] && echo first >&2; '
                             'while ! [ -e $NOTES/gone ]; do sleep 0.01; done; '
                             'for i in $(seq 2000); do echo "more text than a pipe holds $i" >&2; done; echo done')
    assert process.stderr.readline() == "[0] first\n"
    process.stderr.close()
    (launcher.notes / "gone").touch()
    assert process.stdout.read() == "done\n" * 2
    assert process.wait() == 0


def test_standard_error_may_be_a_file_a_socket_or_closed(launcher, tmp_path):
    script = 'echo out; echo error >&2'
    with open(tmp_path / "both", "w") as both:
        assert launcher.run(program=script, stdout=both, stderr=both)[0] == 0
    assert sorted((tmp_path / "both").read_text().splitlines()) == ["[0] error", "out"]
    import socket
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert launcher.run(program=script, stderr=theirs)[:2] == (0, "out\n")
        theirs.close()
        assert ours.makefile().read() == "[0] error\n"
    assert launcher.run(program=script, stderr=None, preexec_fn=lambda: os.close(2))[:2] == (0, "out\n")


def test_repeated_lines_are_cut(launcher):
    script = ('import os, sys, time\n'
              'if os.environ["RANK"] == "0":\n'
              '    print("y" * 5000, file=sys.stderr); os._exit(1)\n'
              'while not os.path.exists(os.environ["NOTES"] + "/failed"): time.sleep(0.01)\n'
              'print("lost", file=sys.stderr)')
    process = launcher.start("-n", 2, "--grace", 60, program=[sys.executable, "-c", script])
    assert process.stderr.readline() == "[0] " + "y" * 5000 + "\n"
    assert own_lines(process.stderr.readline()) == [
        "rank 0 (pid P) exited with code 1 after T s; stopping 1 other rank"]
    (launcher.notes / "failed").touch()
    assert process.stderr.readline() == "[1] lost\n"
    assert own_lines(process.stderr.readline()) == [
        "the first failure: rank 0 (pid P) exited with code 1 after T s; its last lines were:"]
    assert process.stderr.readline() == "[0] " + "y" * 1023 + "\n"
    assert process.wait() == 1
