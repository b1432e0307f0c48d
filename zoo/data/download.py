"""Download of one published file: resumed after an interruption, checked against its SHA-256."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from zoo.errors import DatasetError
from zoo.files import locked, sha256_of

_CHUNK = 2**16


@dataclass(frozen=True)
class PublishedFile:
    """File of a publisher: name, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


class _InterruptedTransferError(Exception):
    """A transfer that ended early; the bytes so far are kept."""


def fetch(
    file: PublishedFile,
    url: str,
    folder: Path,
    attempts: int = 4,
    pause: float = 1.0,
    timeout: float = 30.0,
    progress: bool = True,
) -> Path:
    """Download a file to `folder / file.name` and return that path; an existing file is returned unchecked.

    Incomplete bytes are kept in a `.part` file, so that the next attempt, or the next run, asks only for the rest.
    If two processes ask for the same file, the second waits for the first.

    Args:
        file: The name, size and hash of the file.
        url: Its address.
        folder: The folder to write to.
        attempts: How often to try.
        pause: Seconds between the first two attempts; doubled for each further one.
        timeout: Seconds of each wait for the network.
        progress: Whether to show a progress bar on a terminal.

    Raises:
        DatasetError: If the download failed, the file is not the published one, or the folder cannot be written.
    """
    target = folder / file.name
    with _lock(folder / f".{file.name}.lock"):
        if target.exists():
            return target
        part = folder / f"{file.name}.part"
        _transfer(file, url, part, attempts, pause, timeout, progress)
        _check(file, url, part)
        part.replace(target)
    return target


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file, which stays, because removing it would let a third process in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise DatasetError(
            f"{path.parent} cannot be written to: {error.strerror}. Set ZOO_HOME to a folder that can.",
            code="not-writable",
        ) from None
    with locked(path):
        yield


def _transfer(
    file: PublishedFile, url: str, part: Path, attempts: int, pause: float, timeout: float, progress: bool
) -> None:
    """Fill `part` to the file's size, or raise `DatasetError`."""
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            _append(file, url, part, timeout, progress)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                part.unlink(missing_ok=True)  # we have more than the server: start again
            elif error.code < 500 and error.code not in (408, 429):
                raise DatasetError(
                    f"{url} could not be downloaded: the server says {error.code} {error.reason}.",
                    code="download-failed",
                ) from None
            reason = f"the server says {error.code} {error.reason}"
        except (OSError, HTTPException, _InterruptedTransferError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
    raise DatasetError(f"{url} could not be downloaded in {attempts} attempts: {reason}.", code="download-failed")


def _append(file: PublishedFile, url: str, part: Path, timeout: float, progress: bool) -> None:
    """Request the bytes that are still missing and append them."""
    have = part.stat().st_size if part.exists() else 0
    if have == file.size:
        return
    if have > file.size:
        part.unlink()
        have = 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        start = _start_of(response, have, file)
        with part.open("r+b" if start else "wb") as out:
            out.seek(start)
            _copy(response, out, file, progress)


def _start_of(response: HTTPResponse, have: int, file: PublishedFile) -> int:
    """Return the position in the file at which the body begins: `have` if the server resumes, else 0.

    Raises:
        DatasetError: If the server's file has another size. Two different files are never joined into one.
        InterruptedTransferError: If the server sent another range.
    """
    if response.status == 206:
        span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        resumes = span.startswith(f"{have}-")
    else:
        total, resumes = response.headers.get("Content-Length", ""), False
    if total.isdigit() and int(total) != file.size:
        raise DatasetError(
            f"{response.url} has {int(total):,} bytes, not the {file.size:,} of the published {file.name}.",
            code="hash-mismatch",
        )
    if response.status == 206 and not resumes:
        raise _InterruptedTransferError("the server did not send the requested part of the file")
    return have if resumes else 0


def _copy(response: HTTPResponse, out: BinaryIO, file: PublishedFile, progress: bool) -> None:
    """Append the body to `out`, flush it to the disk, and raise `_InterruptedTransferError` if it ended early."""
    hidden = None if progress else True  # None: shown on a terminal only
    with tqdm(desc=file.name, total=file.size, initial=out.tell(), unit="B", unit_scale=True, disable=hidden) as bar:
        while out.tell() < file.size and (chunk := response.read(min(_CHUNK, file.size - out.tell()))):
            out.write(chunk)
            bar.update(len(chunk))
    out.flush()
    os.fsync(out.fileno())
    if out.tell() < file.size:
        raise _InterruptedTransferError(f"the connection ended after {out.tell():,} of {file.size:,} bytes")


def _check(file: PublishedFile, url: str, part: Path) -> None:
    sha256 = sha256_of(part)
    if sha256 != file.sha256:
        part.unlink()
        raise DatasetError(
            f"{url} is not the published {file.name}: its sha256 is {sha256}, expected {file.sha256}. "
            "The download has been deleted; run again, or get the file from elsewhere.",
            code="hash-mismatch",
        )
