# SPDX-License-Identifier: Apache-2.0
"""The Python program of the README runs, and prints what its comment says."""
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"


def test_quick_start(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "print(tpfsdp.run_ranks(4, train))" in program
    path = tmp_path / "quick.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    promised = re.search(r"print\(.*?\) +# (.*)", program).group(1)
    assert done.stdout.strip() == str([[[4.5, 4.5]]] * 4) == str(eval(promised))
