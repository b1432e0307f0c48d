"""Watching of a folder: a sign whenever files in it have changed, for `zoo index --watch`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.errors import missing

QUIET_MS = 2000
"""Milliseconds without a change after which a change counts as complete: a copy of many files is one."""
LONGEST_MS = 60_000
"""Milliseconds after which changes count as complete even if they go on."""


def changes(folder: Path, own: Sequence[Path] = ()) -> Iterator[None]:
    """Yield once when the folder is watched, and again after each change of files in it; it ends at Ctrl-C.

    A folder of another machine (NFS, SMB) tells no changes; with the variable WATCHFILES_FORCE_POLLING=1 it is looked
    at again and again.

    Args:
        folder: The folder.
        own: Files and folders whose changes do not count.

    Raises:
        MissingDependencyError: If watchfiles is not installed.
    """
    try:
        from watchfiles import watch
    except ImportError:
        raise missing("watchfiles", "watch") from None
    excluded = [os.path.abspath(path) for path in own]  # noqa: PTH100

    def counts(change: object, path: str) -> bool:
        return not any(path == place or path.startswith(place + os.sep) for place in excluded)

    begun = False
    for changed in watch(
        folder,
        watch_filter=counts,
        debounce=LONGEST_MS,
        step=QUIET_MS,
        rust_timeout=1000,
        yield_on_timeout=True,
        raise_interrupt=False,
        ignore_permission_denied=True,
    ):
        if changed or not begun:
            begun = True
            yield
