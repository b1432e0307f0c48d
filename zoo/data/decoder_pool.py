"""Processes that decode images (`zoo.data.decoder`), started when they are needed and shared by all threads.

A thread that decodes an image takes an idle process or starts one, sends it the file and reads the pixels. A process
that exceeds a bound of its image ends, and the thread raises `ImageError`; the next image gets a new process. So no
file can keep this process busy, fill its memory or end it.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, cast

from PIL import Image

from zoo.data import decoder
from zoo.errors import ImageError, ImageTooLargeError
from zoo.paths import child_environment, core_count

ROOT = Path(__file__).parents[2]
PIPE_BYTES = 2**20
"""Size of the pipes: a photograph and its pixels fit, so that neither side waits for the other."""
BUFFER_BYTES = 2 * PIPE_BYTES
"""Bytes of an answer that are read at once."""
PROGRAM = """\
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("decoder", sys.argv[1])
decoder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(decoder)
sys.path.insert(0, sys.argv[2])
decoder.main()
"""
"""The program of the processes; it gets the file of `zoo.data.decoder`, and the folder in which `zoo` is.

A module is compiled once for all of them; a script would be in each of them.
"""
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    # glibc would give the memory of each image back, and the kernel would clear its pages for the next.
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**20),
}
"""Variables of the processes."""
MAX_FACTS = 2**16
"""The most bytes of an answer before its pixels."""
WALL_SECONDS, WALL_SECONDS_PER_MEGAPIXEL = 30.0, 0.5
"""Seconds until an image counts as too slow where the system does not count processor time, or gives us none."""
PATIENCE = 0.5
"""Seconds after which a decoder counts as one beside which others may start."""
SLOW_SECONDS = 2.0
"""Seconds after which a decoder gives way to all other processes, and ends after its image."""


class Job(NamedTuple):
    """The request for one image; see `zoo.data.decoder.decode`. square: the part to return, or None for all of it."""

    name: str
    max_pixels: int
    draft: int | None
    square: dict[str, Any] | None

    @property
    def most_pixels(self) -> int:
        """The most pixels of an answer."""
        return max(self.max_pixels, self.square["crop"] ** 2 if self.square else 0)


class _DecoderProcess:
    """One process, and the pipes to it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-S", "-c", PROGRAM, decoder.__file__, str(ROOT)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment() | ENVIRONMENT,
        )
        self.files, self.pixels = cast(FileIO, self.process.stdin), cast(FileIO, self.process.stdout)
        for pipe in (self.files, self.pixels):
            _enlarge(pipe)
        self.buffer, self.begin, self.until = _new_buffer(BUFFER_BYTES), 0, 0
        self.begun, self.deadline, self.is_slow = 0.0, float("inf"), False

    def send(self, data: bytes, job: Job) -> None:
        """Send an image. Raises `BrokenPipeError` if the process has ended."""
        head = decoder.framed({**job._asdict(), "bytes": len(data)})
        for part in (head + data,) if len(data) < PIPE_BYTES else (head, data):
            rest = memoryview(part)
            while rest:
                rest = rest[self.files.write(rest) :]

    def receive(self, job: Job, large: threading.Lock) -> tuple[dict[str, Any], Image.Image | None]:
        """Return the answer and, of a decoded image, its pixels.

        Args:
            job: What was sent.
            large: Held while an image is decoded that needs much memory.

        Raises:
            EOFError: If the process has ended, or sends what it never sends: a damaged decoder is not believed.
        """
        self.begin = self.until = 0
        facts = self._facts()
        if "needs" not in facts:
            return self._pixels(facts, job)
        limit, self.deadline = self.deadline - time.monotonic(), float("inf")
        with large:
            self.deadline = time.monotonic() + limit
            self.files.write(decoder.GO)
            return self._pixels(self._facts(), job)

    def _facts(self) -> dict[str, Any]:
        (length,) = decoder.LENGTH.unpack(self._read(decoder.LENGTH.size))
        if length > MAX_FACTS:
            raise EOFError
        facts: dict[str, Any] = json.loads(bytes(self._read(length)))
        return facts

    def _pixels(self, facts: dict[str, Any], job: Job) -> tuple[dict[str, Any], Image.Image | None]:
        if "code" in facts:
            return facts, None
        mode, (width, height) = str(facts["mode"]), facts["size"]
        if mode not in ("L", "RGB") or min(width, height) < 1 or width * height > job.most_pixels:
            raise EOFError
        image = Image.new(mode, (width, height), None)
        for top, bottom in decoder.bands(mode, (width, height)):
            shape = width, bottom - top
            image.paste(Image.frombytes(mode, shape, self._read(shape[0] * shape[1] * len(mode))), (0, top))
        if len(self.buffer) > BUFFER_BYTES:
            self.buffer = _new_buffer(BUFFER_BYTES)
        return facts, image

    def _read(self, count: int) -> memoryview:
        """Return the next bytes of the answer, which are valid until the next call.

        An answer mostly comes in one piece: each call of the system lets other threads have the interpreter first.
        """
        if self.until - self.begin < count:
            rest = bytes(self.buffer[self.begin : self.until])
            if count > len(self.buffer):  # a row of millions of pixels
                self.buffer = _new_buffer(count)
            self.buffer[: len(rest)] = rest
            self.begin, self.until = 0, len(rest)
        while self.until - self.begin < count:
            read = self.pixels.readinto(self.buffer[self.until :])
            if not read:
                raise EOFError
            self.until += read
        self.begin += count
        return self.buffer[self.begin - count : self.begin]

    def give_way(self) -> None:
        """Lower the priority of the process, so that other work is done as fast as without it."""
        self.is_slow = True
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self.process.pid, 5)

    def end(self) -> int:
        """End the process, and return its exit status: a negative number is the signal that ended it."""
        self.process.kill()  # one that has ended keeps its own status
        self.files.close()
        self.pixels.close()
        return self.process.wait()


class _DecoderPool:
    """Decoder processes: at most one per core, and one more for each that decodes for longer than `PATIENCE`.

    A thread waits for one otherwise: to start a process takes longer than most images. At most `size` threads decode.
    Of the images that need more than `decoder.LARGE_BYTES`, one is decoded at a time.
    """

    def __init__(self, size: int, cores: int) -> None:
        self.places, self.cores, self.large = threading.BoundedSemaphore(size), cores, threading.Lock()
        self.lock = threading.Condition()
        self.starting = 0
        self.idle: list[_DecoderProcess] = []
        self.busy: set[_DecoderProcess] = set()
        self.watch: threading.Thread | None = None
        self.work = threading.Event()

    def decode(self, data: bytes, job: Job) -> decoder.DecodedFile:
        """Return an image; see `zoo.data.decoder.decode`.

        Raises:
            ImageTooLargeError: If it has too many pixels, or takes too much memory.
            ImageError: If it is damaged, of an unknown format, or takes too much time ("too-slow").
        """
        with self.places:
            process = self._sent(data, job)
            try:
                facts, image = process.receive(job, self.large)
                decoded = None if image is None else _decoded(image, facts)
            except BaseException as error:  # also Ctrl-C: what the process still sends belongs to no one
                status = self._drop(process)
                if not isinstance(error, EOFError | ValueError | KeyError | TypeError | BrokenPipeError):
                    raise
                raise _status_error(status, job.name) from None
            self._release(process)
        if decoded is not None:
            return decoded
        raise error_of(facts["code"], facts["message"])

    def close(self) -> None:
        """End all processes; the pool can be used again."""
        with self.lock:
            processes, self.idle = [*self.idle, *self.busy], []
        for process in processes:
            process.end()

    def forget(self) -> None:
        """Let go of the processes in a forked process, since they are its parent's."""
        for process in (*self.idle, *self.busy):
            process.files.close()
            process.pixels.close()
            process.process.returncode = 0

    def _sent(self, data: bytes, job: Job) -> _DecoderProcess:
        """Return the process that has got the image."""
        while True:
            process, is_new = self._take()
            process.deadline = process.begun + WALL_SECONDS + WALL_SECONDS_PER_MEGAPIXEL * job.max_pixels / 1e6
            try:
                process.send(data, job)
            except (BrokenPipeError, ValueError):  # something else ended it, or the pool was closed, meanwhile
                self._drop(process)
                if is_new:
                    raise
            except BaseException:
                self._drop(process)
                raise
            else:
                return process

    def _take(self) -> tuple[_DecoderProcess, bool]:
        """Return a process that is now busy, and whether it was started for this."""
        with self.lock:
            while not self.idle and not self._has_room():
                self.lock.wait(PATIENCE / 4)
            if self.idle:
                process = self.idle.pop()
                self._begin(process)
                return process, False
            self.starting += 1
        try:
            process = _DecoderProcess()
        finally:
            with self.lock:
                self.starting -= 1
        with self.lock:
            self._begin(process)
        return process, True

    def _has_room(self) -> bool:
        now = time.monotonic()
        slow = sum(now - process.begun > PATIENCE for process in self.busy)
        return len(self.busy) + self.starting < self.cores + slow

    def _begin(self, process: _DecoderProcess) -> None:
        """Count a process as busy. The caller holds the lock."""
        process.begun, process.deadline = time.monotonic(), float("inf")
        self.busy.add(process)
        if self.watch is None:
            watch = threading.Thread(target=self._watch, name="decoder watch", daemon=True)
            watch.start()
            self.watch = watch
        self.work.set()

    def _release(self, process: _DecoderProcess) -> None:
        with self.lock:
            self.busy.discard(process)
            keep = len(self.idle) < self.cores and not process.is_slow
            if keep:
                self.idle.append(process)
            self.lock.notify()
        if not keep:
            process.end()

    def _drop(self, process: _DecoderProcess) -> int:
        with self.lock:
            self.busy.discard(process)
            self.lock.notify()
        return process.end()

    def _watch(self) -> None:
        """Slow down and then end the processes whose image takes too long."""
        while self.work.wait():
            time.sleep(SLOW_SECONDS / 2)
            now = time.monotonic()
            with self.lock:
                busy = list(self.busy)
                if not busy:
                    self.work.clear()
            for process in busy:
                if now > process.deadline:
                    process.process.kill()
                elif now > process.begun + SLOW_SECONDS and not process.is_slow:
                    process.give_way()


def _decoded(image: Image.Image, answer: dict[str, Any]) -> decoder.DecodedFile:
    width, height = answer["full"]
    return decoder.DecodedFile(
        image, (int(width), int(height)), tuple(map(str, answer["notes"])), dict(answer["facts"])
    )


def error_of(code: str, message: str) -> ImageError:
    """Return the error for a `zoo.data.decoder.Refusal`."""
    return ImageTooLargeError(message) if code == decoder.TOO_LARGE else ImageError(message, code=code)


def _new_buffer(count: int) -> memoryview:
    """Return memory of its own mapping, which the system has back at once: malloc would keep it in a thread's arena."""
    return memoryview(mmap.mmap(-1, count))


def _enlarge(pipe: FileIO) -> None:
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _status_error(status: int, name: str) -> ImageError:
    """Return the error for an image whose process ended."""
    too_slow = {-getattr(signal, number) for number in ("SIGPROF", "SIGKILL", "SIGXCPU") if hasattr(signal, number)}
    if status in too_slow:
        return ImageError(f"{name} takes too long to decode for its size, or too much memory.", code="too-slow")
    return ImageError(f"{name} cannot be decoded: the decoder failed with status {status}.", code="unreadable-image")


def _new_pool() -> _DecoderPool:
    cores = core_count()
    return _DecoderPool(max(4, 2 * cores), cores)


def _after_fork() -> None:
    global _pool
    _pool.forget()
    _pool = _new_pool()


_pool = _new_pool()
atexit.register(lambda: close())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def decode(data: bytes, job: Job) -> decoder.DecodedFile:
    """Decode an image file in the pool of this process; see `_DecoderPool.decode`."""
    return _pool.decode(data, job)


def close() -> None:
    """End the decoders of this process; threads that wait for one get an `ImageError`."""
    _pool.close()
