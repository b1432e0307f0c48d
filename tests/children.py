"""Child processes: Python code in a fresh interpreter, and functions in processes that tests kill or connect."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any

# Processes are forked by a server that has imported the large libraries without using them: autograd does not work in
# the fork of a process that has used it with devices.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torchvision", "timm"])


def run_python(code: str, *arguments: object, timeout: float = 120) -> str:
    """Run code in a fresh interpreter and return its output; a failure is an assertion with its traceback."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(
    target: Callable[..., object], *args: Any, environment: Mapping[str, str] = MappingProxyType({})
) -> BaseProcess:
    """Call a function of a module in a new process, with this environment and more variables."""
    process: BaseProcess = CONTEXT.Process(target=_call, args=(target, args, {**os.environ, **environment}))
    process.start()
    return process


def _call(target: Callable[..., object], args: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
