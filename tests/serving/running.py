"""Services for tests: a real `zoo serve` process, a server in a thread, and an application without a server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from serving.app import create_app
from serving.connections import HttpConnection
from serving.dependencies import Collection, Collections
from serving.gallery.search import Searcher
from serving.keys import Keys
from serving.model_swap import CurrentSearcher
from serving.settings import Settings, gallery_variables, parse_galleries

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
        """Return the processes of a service with several workers."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = []
        for child in children:
            with suppress(FileNotFoundError):  # it has ended meanwhile
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@contextmanager
def serving(
    gallery: Path | list[str],
    *options: object,
    stderr: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    command: Sequence[str] = (),
) -> Iterator[Running]:
    """Run a service.

    Args:
        gallery: A folder, or several as NAME=FOLDER.
        options: Flags of `zoo serve`.
        stderr: As of `Popen`.
        environment: What is set for this service and for no other.
        command: What to run instead of the command `zoo`, as a list of words.
    """
    process = subprocess.Popen(
        [
            *(command or arguments()),
            "serve",
            *map(str, [gallery] if isinstance(gallery, Path) else gallery),
            "--port",
            "0",
            *map(str, options),
        ],
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


def settings(environ: Mapping[str, str] = MappingProxyType({}), **values: object) -> Settings:
    """Return the settings of this environment, without that of the tests."""
    keys = {name: SecretStr(str(values[name])) for name in ("read_keys", "write_keys") if name in values}
    with patch.dict(os.environ, environ, clear=True):
        return Settings.load().model_copy(update={**values, **keys})


def app_over(gallery: Path | Searcher | Callable[[], Searcher] | list[str], **values: object) -> FastAPI:
    """Return an application.

    Args:
        gallery: A folder, a searcher, a function that opens one, or several folders as NAME=FOLDER.
        values: Fields of the settings, such as `write_keys` and `concurrency`.
    """
    if isinstance(gallery, list):
        variables = gallery_variables(parse_galleries(gallery))
        return create_app(settings(variables, **values))
    chosen = settings(**values)
    if isinstance(gallery, Path):
        current = CurrentSearcher(lambda: Searcher.open(gallery, limits=chosen.limits))
    else:
        current = CurrentSearcher((lambda: gallery) if isinstance(gallery, Searcher) else gallery)
    return create_app(chosen, Collections([Collection("", current, Keys.load(chosen))]))


@contextmanager
def local_client(
    gallery: Path | Searcher | Callable[[], Searcher] | list[str], key: str = "", **values: object
) -> Iterator[TestClient]:
    """Yield a client of an application without a server: quick, but without connections, timeouts and signals.

    Args:
        gallery: As for `app_over`.
        key: A write key, which each request carries.
        values: Fields of the settings.
    """
    app = app_over(gallery, **({"write_keys": key} if key else {}), **values)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    yield TestClient(app, "http://localhost", headers=headers, raise_server_exceptions=False)
    app.state.collections.close()


@contextmanager
def answering(app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Yield the URL at which a thread of this process serves `app`; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    config = uvicorn.Config(
        app, http=HttpConnection, ws="none", log_config=None, lifespan="off", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    with socket.create_server((host, port), family=family) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.005)
            name = f"[{host}]" if ":" in host else host
            yield f"http://{name}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)


@contextmanager
def writing_to(searcher: Searcher, key: str, **values: object) -> Iterator[httpx.Client]:
    """Yield a client, with the write key, of a server in a thread over the searcher."""
    app = app_over(searcher, write_keys=key, **values)
    with answering(app) as url, httpx.Client(base_url=url, timeout=60, headers={"x-api-key": key}) as client:
        yield client
