"""Child processes for tests that kill one or connect several."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any

# Forked by a server that has imported the large libraries and has used none: autograd does not work in the fork of a
# process that has used it with devices.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torchvision", "timm"])


def start(
    target: Callable[..., object], *args: Any, environment: Mapping[str, str] = MappingProxyType({})
) -> BaseProcess:
    """Call a function of a module in a new process, with this environment and further variables."""
    process: BaseProcess = CONTEXT.Process(target=_call, args=(target, args, {**os.environ, **environment}))
    process.start()
    return process


def _call(target: Callable[..., object], args: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
