"""Files and folders that are written whole or not at all, checked JSON, locks and hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

MAX_DEPTH = 64
"""Levels of lists and objects in a JSON file. Ours have a handful; thousands exhaust the interpreter's stack."""

MAX_JSON_BYTES = 16 * 2**20
"""Largest JSON file; ours have kilobytes. In memory a file takes many times its size."""

CHUNK_BYTES = 2**27
"""Bytes that are hashed at a time. Large, because after each chunk other threads may keep the interpreter busy."""

_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""The JSON escape of one half of a surrogate pair."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`; it is renamed to `path` if the block succeeds, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays the same because some writers choose their format by it.
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        _fsync(temporary)
        temporary.replace(path)
        _fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary folder; it replaces `path` if the block succeeds, else it is removed.

    A folder that a killed writer had moved aside is put back first.

    Args:
        path: The folder to write.
        durable: Whether to fsync every file. Folders of many files that can be made again do without.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _recover(path)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    retired = temporary.with_name(temporary.name + ".old")
    try:
        yield temporary
        temporary.chmod(0o755)
        for file in temporary.rglob("*"):
            # Some writers make files that only their owner may read.
            file.chmod(0o755 if file.is_dir() else 0o644)
            if durable:
                _fsync(file)
        # A folder cannot be renamed over a full one, so the old one is moved aside first and comes back on failure.
        if path.exists():
            path.replace(retired)
        try:
            temporary.replace(path)
        except OSError:
            if retired.exists():
                retired.replace(path)
            raise
        _fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def _recover(path: Path) -> None:
    """Put back a folder that was moved aside for a new one by a writer that was killed before its second rename."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}\.old")
    retired = [folder for folder in path.parent.iterdir() if pattern.fullmatch(folder.name)]
    if retired and not path.exists():
        max(retired, key=lambda folder: folder.stat().st_mtime).replace(path)


def _fsync(path: Path) -> None:
    is_folder = path.is_dir()
    if is_folder and sys.platform == "win32":  # which opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all; NaN and infinity raise `ValueError`."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def open_at_once(path: str, flags: int) -> int:
    """Open a file, as `opener` of `open`, without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def open_file(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a file of anybody for reading. Raises `OSError`, also for a pipe or a device, which may have no end."""
    # The caller closes it; Path.open takes no opener.
    file: BinaryIO = open(path, "rb", buffering, opener=open_at_once)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return file


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a file. Raises `ValueError` if it has more bytes than a limit, and `OSError`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, limit) + 1)
    if (size := max(size, len(data))) > limit:
        raise ValueError(f"{path.name} has {size:,} bytes; at most {limit:,} are read")
    return data


def read_json(path: Path) -> Any:
    """Return the value that a JSON file holds.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not UTF-8 or not JSON, holds NaN, infinity or half of a surrogate pair, is nested too deep,
            or has more than `MAX_JSON_BYTES`.
    """
    return parse_json(read_bytes(path, MAX_JSON_BYTES).decode())


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises `ValueError` as `read_json` does."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE.search(text):
        _check_characters(value)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds, an empty one if the file is unreadable or holds something else."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _parse_finite(text: str) -> float:
    """Parse a number. Python's reader would accept NaN and infinity, which JSON lacks, and read 1e999 as infinity."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a JSON number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_parse_finite, parse_float=_parse_finite)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 2):
        if not level:
            return
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = list(chain.from_iterable(inner))
    raise ValueError(_TOO_DEEP)


def _check_characters(value: Any) -> None:
    """Refuse half of a surrogate pair, which Python's reader accepts although it can be neither printed nor written."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"{ord(error.object[error.start]):04x}"
        raise ValueError(f"it holds \\u{half}, half of a surrogate pair, which is not a character") from None


def append_json_line(path: Path, value: Any) -> None:
    """Append a value as one line to a JSON Lines file; a lock on its folder keeps other writers out.

    A last line that a killed process left unfinished is removed first.

    Args:
        path: The file. It and its folder are created if missing.
        value: Any JSON value. NaN and infinity raise `ValueError`.
    """
    line = (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent), path.open("a+b") as file:
        file.truncate(_complete_size(file))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def complete_lines(path: Path, start: int = 0) -> list[bytes]:
    """Return the complete lines of a file from byte `start` on, none for a missing file.

    A last line without its line end is still being written, or was left by a killed process; it is not returned.
    """
    try:
        with open_file(path) as file:
            file.seek(start)
            return file.read().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _complete_size(file: BinaryIO) -> int:
    """Return the number of bytes up to the end of the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 2**16)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class LockHeldError(Exception):
    """Another process or thread holds a lock."""


def _open_for_lock(path: Path) -> int:
    """Return a descriptor that stands for a folder or file; on Windows, which opens no folders, of a temporary file."""
    if sys.platform == "win32" and path.is_dir():
        name = hashlib.sha256(str(path.resolve()).casefold().encode(errors="surrogatepass")).hexdigest()
        return os.open(Path(tempfile.gettempdir()) / f"dml-zoo-{name[:32]}.lock", os.O_RDWR | os.O_CREAT)
    return os.open(path, os.O_RDONLY)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a folder or file exclusively; the system releases it when the process ends.

    The lock is on the folder or file itself, which is opened for reading only: no lock file is left behind in a model
    folder, and a folder that this process may not write can be locked, too.

    Args:
        path: An existing folder or file. Threads of one process exclude each other as processes do.
        wait: Whether to wait for the lock.

    Raises:
        LockHeldError: If another process or thread holds the lock, and `wait` is false.
        OSError: If the path cannot be opened.
    """
    from filelock import lock_descriptor  # most commands lock nothing

    descriptor = _open_for_lock(path)
    try:
        if not lock_descriptor(descriptor, blocking=wait, poll_interval=0.005):
            raise LockHeldError(path)
        yield
    finally:
        os.close(descriptor)


def keep_newest(used: Path, pattern: str, count: int) -> None:
    """Mark a file or folder of a cache as used now, and delete all others beside it but the last used ones.

    Args:
        used: The file or folder, which stays even if the clock was changed.
        pattern: A glob pattern of the cache's files and folders in this folder.
        count: The number to keep.
    """
    with suppress(OSError):  # another process deletes as well, or the cache may only be read
        os.utime(used)
        older = [file for file in used.parent.glob(pattern) if file != used]
        for file in sorted(older, key=lambda file: file.stat().st_mtime_ns, reverse=True)[count - 1 :]:
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(path, buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
