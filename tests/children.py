"""Child processes that need not import torch again, for tests that kill one or connect several."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any

import torch


def start(
    target: Callable[..., object], *args: Any, environment: Mapping[str, str] = MappingProxyType({})
) -> BaseProcess:
    """Call a function of a module in a new process, with further environment variables.

    The process is forked, which takes milliseconds instead of the seconds of importing torch. Where torch has GPUs it
    is spawned: autograd cannot be used in the fork of a process that has used it with devices.
    """
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    process: BaseProcess = context.Process(target=_call, args=(target, args, dict(environment)))
    with warnings.catch_warnings():
        # From Python 3.12 on a fork warns where there are threads. The child uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _call(target: Callable[..., object], args: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    target(*args)
