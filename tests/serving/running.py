"""A real `zoo serve` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx
import uvicorn
from starlette.types import ASGIApp

from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import WRITE_KEYS, Configuration
from serving.gallery.search import Searcher
from serving.keys import Keys

ROOT = Path(__file__).parent.parent.parent


def arguments(*words: object) -> list[str]:
    return [sys.executable, "-W", "error::ResourceWarning", "-m", "zoo.cli.main", *map(str, words)]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments(*words), capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


@dataclass(frozen=True)
class Running:
    url: str
    process: subprocess.Popen[str]

    def workers(self) -> list[int]:
        """The processes that a service of several has started."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@contextmanager
def serving(
    gallery: Path | list[str],
    *options: object,
    stderr: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """gallery: a folder, or several as NAME=FOLDER. environment: what is set for this service and for no other."""
    process = subprocess.Popen(
        arguments("serve", *([gallery] if isinstance(gallery, Path) else gallery), "--port", 0, *options),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )
    assert process.stdout
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the server ended with {process.wait(timeout=20)}"
        yield Running(found[0], process)
    finally:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still: of two workers the other one gets all connections."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def answering(
    app: ASGIApp, host: str = "127.0.0.1", port: int = 0, http: type[asyncio.Protocol] | str = "auto"
) -> Iterator[str]:
    """The URL at which a thread of this process serves `app`; port 0: a free one. http: as uvicorn takes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    how = {"log_config": None, "lifespan": "off", "timeout_graceful_shutdown": 5}
    config = uvicorn.Config(app, http=http, **how)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.create_server((host, port), family=family) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            name = f"[{host}]" if ":" in host else host
            yield f"http://{name}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)


@contextmanager
def writing_to(searcher: Searcher, key: str, configuration: Configuration | None = None) -> Iterator[httpx.Client]:
    """A client, with the write key, of a service over the searcher that a thread of this process answers for."""
    app = create_app(Collections([Collection("", lambda: searcher, Keys.of({WRITE_KEYS: key}))]), configuration)
    with answering(app) as url, httpx.Client(base_url=url, timeout=60, headers={"x-api-key": key}) as client:
        yield client
