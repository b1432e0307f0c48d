"""`zoo serve`: uvicorn in this process, or uvicorn's workers at one socket."""

from __future__ import annotations

import ipaddress
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from serving.app import create_app
from serving.auth import ANY_HOST, Keys
from serving.gallery.backends.milvus_client import check_workers
from serving.gallery.search import check_variant
from serving.metrics import FOLDER, configure_logging
from serving.settings import (
    COLLECTIONS,
    DEVICE,
    GALLERY,
    HOSTS,
    PRECISION,
    READ_KEYS,
    GalleryAddress,
    Settings,
    gallery_variables,
    variable_of,
)
from zoo.errors import GalleryError, UsageError, ZooError
from zoo.paths import thread_count

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open. Proxies close theirs after 60, and must be the first to close."""
KILL_SECONDS = 5.0
"""Seconds after the drain period until a worker that has not ended is killed."""


def serve(
    addresses: Sequence[GalleryAddress],
    host: str,
    port: int,
    flags: Mapping[str, str],
    device: str | None = None,
    precision: str | None = None,
) -> None:
    """Serve galleries until SIGINT or SIGTERM, and finish the open requests. Print the address once it answers.

    Args:
        addresses: The galleries.
        host: The address to listen on; one that other machines reach needs read keys.
        port: The port; 0 takes a free one.
        flags: The values of flags, by the names of their settings.
        device: The device of the models.
        precision: The ONNX variant that embeds.

    Raises:
        UsageError: If the address or a setting is wrong, or a gallery cannot have several workers.
        VariantNotFoundError: If a model lacks the variant.
        GalleryError: If a gallery cannot be served.
    """
    for name in (GALLERY, COLLECTIONS):
        os.environ.pop(name, None)
    os.environ |= gallery_variables(addresses)
    Settings.load(flags)  # its message about a wrong value names the flag
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    os.environ |= {variable_of(name): value for name, value in flags.items()}
    os.environ |= {name: value for name, value in ((DEVICE, device), (PRECISION, precision)) if value}
    settings = Settings.load()
    for address in settings.addresses:  # with the place of a model that ZOO_MODEL names
        check_workers(address.gallery, settings.workers)
        if settings.precision:
            check_variant(address.gallery, address.model, settings.precision)
    has_keys = all(Keys.load(settings, address.name).read for address in addresses)
    os.environ.setdefault(HOSTS, ANY_HOST if has_keys else host)
    with listen(host, port, has_keys) as listening:
        run = run_server if settings.workers == 1 else run_workers
        run(listening, url_of(listening), Settings.load())


def run_server(listening: socket.socket, url: str, settings: Settings) -> None:
    """Serve in this process."""
    prepare_process(settings)
    app = create_app(settings)
    app.state.collections.open()
    config = server_config(app, settings, backlog=BACKLOG)
    Server(config, f"{app.state.collections}, at {url} (Ctrl-C ends)").run(sockets=[listening])


def run_workers(listening: socket.socket, url: str, settings: Settings) -> None:
    """Serve in several processes, which share the cores and the limits. One that dies is started again."""
    with tempfile.TemporaryDirectory(prefix="zoo-serve-") as folder:
        threads = min(thread_count(), settings.share().cores)
        os.environ |= {"OMP_NUM_THREADS": str(threads), FOLDER: folder}
        config = server_config(
            "serving.run:create_worker",
            settings,
            factory=True,
            workers=settings.workers,
            loop="serving.connections:WorkerLoop",
            backlog=1,  # asyncio accepts as many connections at once
        )
        configure_logging(bool(settings.log_requests))
        workers = WorkerSupervisor(config, listening, settings, f"{settings.workers} workers, at {url} (Ctrl-C ends)")
        workers.run()
    if any(process.exitcode == STARTUP_FAILURE for process in workers.processes):
        raise GalleryError("a worker could not start; the message above says why.", code="worker-failed")


def server_config(app: FastAPI | str, settings: Settings, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    proxies = os.environ.get("FORWARDED_ALLOW_IPS", "")
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.drain_seconds,  # type: ignore[arg-type]  # it takes fractions
        timeout_worker_healthcheck=10,
        **{"loop": "asyncio", **options},
    )


def create_worker() -> FastAPI:
    """Return the application of one of several workers, its galleries open; uvicorn calls this in the new process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = Settings.load()
    prepare_process(settings)
    app = create_app(settings)
    try:
        app.state.collections.open()
    except (ZooError, OSError) as error:
        print(f"zoo: error: {error}", file=sys.stderr, flush=True)
        os._exit(STARTUP_FAILURE)  # at once: the supervisor waits for an answer of a process that is ending
    return app


class Server(uvicorn.Server):
    """uvicorn's server in this process. It prints a line once it answers."""

    def __init__(self, config: uvicorn.Config, message: str) -> None:
        super().__init__(config)
        self.message = message

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        if self.started:
            print(self.message, flush=True)


class WorkerSupervisor(Multiprocess):
    """uvicorn's supervisor of worker processes. It prints a line once all of them answer."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, settings: Settings, message: str) -> None:
        super().__init__(config, [listening])
        self.message: str | None = message
        self.end_seconds = settings.shutdown_delay + settings.drain_seconds + KILL_SECONDS

    def keep_subprocess_alive(self) -> None:
        """Start dead workers again, and give the socket the backlog that a starting worker has reduced."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=True):
            if new is not old:
                logger.warning("worker %d ended or did not answer; worker %d takes its place.", old.pid, new.pid)
        for listening in self.sockets:
            listening.listen(BACKLOG)
        if self.message and all(process.is_ready() for process in self.processes):
            print(self.message, flush=True)
            self.message = None

    def terminate_all(self) -> None:
        """Ask the workers to stop. The socket closes when the last of them closes it, so that clients are refused."""
        super().terminate_all()
        for listening in self.sockets:
            listening.close()

    def join_all(self) -> None:
        """Wait for the workers, and kill those that a thread keeps alive."""
        for process in self.processes:
            process.process.join(self.end_seconds)
            if process.process.is_alive():
                process.process.kill()
        super().join_all()


def prepare_process(settings: Settings) -> None:
    """Set up logging and this process's limits."""
    configure_logging(bool(settings.log_requests))
    # The client hears what is wrong with an image; Python would keep the text of every warning.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # Seconds that a thread keeps the interpreter; with Python's 0.005, decoding threads delay the event loop.
    sys.setswitchinterval(0.0005)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # shells often allow 1,024 connections and files only
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen(host: str, port: int, has_keys: bool) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: If the port or the address is invalid or taken ("invalid-port", "invalid-address"), or other
            machines reach the address and there are no keys ("public-without-key").
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"the port is {port}; expected a number from 0 to 65535.", code="invalid-port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot serve at {host}:{port}: {reason}.", code="invalid-address") from None
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not has_keys:
        raise UsageError(
            f"other machines can reach {host}, and the service has no keys. Serve at 127.0.0.1, or set {READ_KEYS} to "
            "a key that every request then needs.",
            code="public-without-key",
        )
    is_ipv6 = family == socket.AF_INET6
    try:
        listening = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_ipv6)
    except OSError as error:
        message = f"cannot serve at {host}:{port}: {error.strerror}. Choose another --port."
        raise UsageError(message, code="invalid-address") from None
    # Connections inherit this. Without it, the second part of an answer waits 40 ms for the acknowledgement of the
    # first; asyncio sets it only for sockets that name their protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the address of a listening socket as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End with status 0. uvicorn raises the signal again after it has shut down."""
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)  # another one during Python's own exit would show a traceback
    raise SystemExit(0)


def _end_with_parent() -> None:
    """Stop this worker when its supervisor has died."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
