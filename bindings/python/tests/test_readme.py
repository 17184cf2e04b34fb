# SPDX-License-Identifier: Apache-2.0
"""The Python programs of the README run, and print what their comments say."""
import os
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"
PROGRAM, PROCESSES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
PRINTS = re.compile(r"^print\(.*?\) +# (.*)", re.MULTILINE)


def test_quick_start(tmp_path):
    path = tmp_path / "quick.py"
    path.write_text(PROGRAM)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    promised = PRINTS.search(PROGRAM).group(1)
    assert done.stdout.strip() == str([[[4.5, 4.5]]] * 4) == str(eval(promised))


def test_processes(tmp_path):
    """The README's second program is its first one with another end."""
    path = tmp_path / "processes.py"
    path.write_text(PRINTS.sub("", PROGRAM) + PROCESSES + "    print(rank.backend, train(rank))\n")
    variables = {"WORLD_SIZE": "4", "TPFSDP_STORE": f"file:{tmp_path}/store"}
    ranks = [
        subprocess.Popen([sys.executable, path], env=os.environ | variables | {"RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(4)
    ]
    for rank in ranks:
        output, errors = rank.communicate(timeout=60)
        assert rank.returncode == 0, errors
        assert output.splitlines()[-1] == "shm [[4.5, 4.5]]"
