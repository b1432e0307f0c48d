"""Real service over a gallery of toy pictures, and the memory and log of its process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from serving.gallery.indexing import index_folder
from tests.proof.machine import family
from tests.serving import toys
from tests.serving.running import Running, serving
from zoo.models.load import load

KEY = "write-key-of-the-proof"
WITH_KEY = {"authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Service:
    url: str
    running: Running
    log: Path | None = None

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def client(self, connections: int = 10) -> httpx.Client:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.Client(base_url=self.url, headers=WITH_KEY, timeout=60, limits=limits)

    def check_alive(self) -> None:
        assert self.running.process.poll() is None, "the worker has ended"
        assert httpx.get(f"{self.url}/readyz", timeout=60).status_code == 200

    def said(self) -> str:
        """Return the text that the process has written to its log."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log else ""

    def memory(self, what: str = "VmRSS") -> float:
        """Return the memory of the service and its decoders in MiB; "VmHWM" adds their peaks since `forget_peak`."""
        return sum(_field(process.pid, what) for process in family(self.pid)) / 1024

    def forget_peak(self) -> None:
        for process in family(self.pid):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _field(pid: int, what: str) -> int:
    """Return a number of /proc/PID/status, or 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(what)), 0)


def toy_gallery(folder: Path) -> Path:
    """Write a gallery of the toy pictures, and their model next to it."""
    model = load(toys.write_model(folder / "model"), runtime="onnx")
    index_folder(model, str(model.folder), toys.write_pictures(folder / "pictures"), folder / "gallery")
    return folder / "gallery"


@contextmanager
def service(gallery: Path, scratch: Path, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Serve a copy of the gallery with a write key, and make sure that the process lives to the end."""
    copy = scratch / "served"
    shutil.copytree(gallery, copy)
    mine = {"ZOO_SERVE_WRITE_KEYS": KEY, **(environment or {})}
    with (scratch / "log").open("wb") as log, serving(copy, stderr=log.fileno(), environment=mine) as running:
        yield Service(running.url, running, scratch / "log")
        assert running.process.poll() is None, "the worker has ended"
