"""That mistakes are told before torch is loaded, seen in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def assert_told_before_torch(call: list[str], mistakes: list[tuple[list[str], str]]) -> None:
    """Each call of `zoo` with the options of a mistake ends with 2 and says so, and loads neither torch nor timm."""
    code = f"""
import sys
from zoo.cli.main import main
for options, _ in {mistakes!r}:
    assert main([*{call!r}, *options]) == 2
print({{"torch", "timm"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    for (_, says), line in zip(mistakes, done.stderr.splitlines(), strict=True):
        assert says in line
