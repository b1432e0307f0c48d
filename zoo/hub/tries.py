"""What the Hub may answer otherwise a moment later is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from zoo.errors import ZooError
from zoo.hub.errors import deepest, is_broken_connection, retry_after, status_of

PAUSES = (1.0, 2.0)
"""Seconds before the second and third try of what may pass by itself; the Hub's own Retry-After comes first."""

LONGEST_PAUSE = 60.0

Result = TypeVar("Result")


class AlteredError(Exception):
    """Files, which it names, came with other bytes than announced."""


def patiently(ask: Callable[[], Result]) -> Result:
    """What `ask` returns, called up to three times while the Hub is busy (429), faulty (5xx) or breaks off.

    Raises the last error as it came; errors of ours at once.
    """
    for pause in PAUSES:
        try:
            return ask()
        except ZooError:
            raise
        except Exception as error:  # the client's own errors, the HTTP library's, the disk's, an answer that is no JSON
            cause = deepest(error)
            if not _may_pass(cause):
                raise
            asked = retry_after(cause)
        time.sleep(pause if asked is None else asked)
    return ask()


def _may_pass(error: Exception) -> bool:
    """Whether the same question may soon get another answer."""
    if (retry_after(error) or 0) > LONGEST_PAUSE:
        return False
    status = status_of(error)
    return status == 429 or (status or 0) >= 500 or is_broken_connection(error) or isinstance(error, AlteredError)
