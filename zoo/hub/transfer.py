"""How files come from the Hub: over plain HTTP, which is what our tests of broken connections have tried."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

SWITCH = "HF_HUB_DISABLE_XET"
"""The client's own variable. Set to anything, it decides; HF_HUB_DISABLE_XET=0 has large files come by Xet again."""

DAY = 24 * 60 * 60

_lock = Lock()
_before: list[bool] = []
"""What the client's setting was before each of the downloads that are going on."""


@contextmanager
def over_http() -> Iterator[None]:
    """Have the client leave Xet aside while the block runs, unless the user has said what it is to do.

    Its own downloads in other threads follow suit meanwhile; its setting afterwards is the one of before.
    """
    from huggingface_hub import constants

    if SWITCH in os.environ:
        yield
        return
    with _lock:
        _before.append(constants.HF_HUB_DISABLE_XET)
        constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            # The last to end puts back what the first has found.
            constants.HF_HUB_DISABLE_XET = True if _before else before


def remove_leftovers(repo_id: str) -> None:
    """Remove what downloads of a repository that were killed have left in the Hub's cache.

    A part is left over where nobody holds the client's lock of its file, or it is older than a day. Its name is new for
    every download, so that none goes on with it.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache, name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=repo_id, repo_type="model")
    for part in (cache / name / "blobs").glob("*.incomplete"):
        lock = cache / ".locks" / name / f"{part.name.partition('.')[0]}.lock"
        try:
            if not _remove_unlocked(part, lock) and time.time() - part.stat().st_mtime > DAY:
                part.unlink()
        except OSError:  # another process was quicker, or it belongs to somebody else
            continue


def _remove_unlocked(part: Path, lock: Path) -> bool:
    """Remove the part if the client's lock of its file can be had at once; whether it could."""
    from huggingface_hub.utils._fixes import WeakFileLock

    try:
        with WeakFileLock(lock, timeout=0.05):
            part.unlink(missing_ok=True)
    except TimeoutError:  # somebody downloads the file
        return False
    return True
