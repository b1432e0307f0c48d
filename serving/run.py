"""`zoo serve`: uvicorn in this process, or uvicorn's workers at one socket."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from serving.app import create_app
from serving.auth import ANY_HOST
from serving.connections import BACKLOG, KEEP_ALIVE, HttpConnection, Server, end_seconds, raise_file_limit
from serving.gallery.types import is_address
from serving.keys import Keys
from serving.metrics import FOLDER, configure_logging
from serving.settings import (
    COLLECTIONS,
    DEVICE,
    EMBED,
    GALLERY,
    HOSTS,
    PRECISION,
    READ_KEYS,
    GalleryAddress,
    Settings,
    gallery_variables,
    variable_of,
)
from serving.watchdog import KILLED, on_stop_signals, start_watchdog
from serving.workers import Supervisor
from zoo.errors import GalleryError, UsageError, ZooError
from zoo.paths import thread_count

ENDED = (0, -signal.SIGTERM)
"""Exit statuses of a worker that ended when it was asked to; the second is of one that was still starting."""


def serve(
    addresses: Sequence[GalleryAddress],
    host: str,
    port: int,
    flags: Mapping[str, str],
    device: str | None = None,
    precision: str | None = None,
    embed: str | None = None,
) -> None:
    """Serve galleries, or a model, until SIGINT or SIGTERM, and finish the open requests. Print the address.

    Args:
        addresses: The galleries; none with `embed`.
        host: The address to listen on; one that other machines reach needs read keys.
        port: The port; 0 takes a free one.
        flags: The values of flags, by the names of their settings.
        device: The device of the models.
        precision: The ONNX variant that embeds.
        embed: The name or folder of the model to serve without a gallery.

    Raises:
        UsageError: If the address or a setting is wrong, or a gallery cannot have several workers.
        GalleryError: If a gallery cannot be served.
    """
    for name in (GALLERY, COLLECTIONS, EMBED):
        os.environ.pop(name, None)
    os.environ |= {EMBED: embed} if embed else gallery_variables(addresses)
    os.environ |= {name: value for name, value in ((DEVICE, device), (PRECISION, precision)) if value}
    settings = Settings.load(flags)  # its message about a wrong value names the flag
    on_stop_signals(_leave)
    for address in addresses:
        if is_address(address.gallery):
            from serving.gallery.backends.milvus_client import check_workers

            check_workers(address.gallery, settings.workers)
    names = [address.name for address in addresses] or [""]
    has_keys = all(Keys.load(settings, name).read for name in names)
    if HOSTS not in os.environ:
        os.environ[HOSTS] = ANY_HOST if has_keys else host
        settings = settings.model_copy(update={"hosts": os.environ[HOSTS]})
    os.environ |= {variable_of(name): value for name, value in flags.items()}  # workers read the settings there
    with listen(host, port, has_keys) as listening:
        run = _run_server if settings.workers == 1 else _run_workers
        run(listening, _url_of(listening), settings)


def _run_server(listening: socket.socket, url: str, settings: Settings) -> None:
    """Serve in this process."""
    start_watchdog(end_seconds(settings) + 1)  # the process kills itself before, if it can
    app = _prepare_app(settings)
    message = f"{app.state.collections}, at {url} (Ctrl-C ends)"
    Server(_server_config(app, settings), app.state, listening, settings, partial(print, message, flush=True)).run()


def _run_workers(listening: socket.socket, url: str, settings: Settings) -> None:
    """Serve in several processes, which share the cores and the limits. One that dies is started again."""
    configure_logging(bool(settings.log_requests))
    with tempfile.TemporaryDirectory(prefix="zoo-serve-") as folder:
        threads = min(thread_count(), settings.share().cores)
        os.environ |= {"OMP_NUM_THREADS": str(threads), FOLDER: folder}
        seconds, on_start = (
            end_seconds(settings) + 1,
            partial(print, f"{settings.workers} workers, at {url} (Ctrl-C ends)", flush=True),
        )
        statuses = Supervisor(work, settings.workers, listening, seconds, STARTUP_FAILURE, on_start).run()
    if STARTUP_FAILURE in statuses:
        raise GalleryError("a worker could not start; the message above says why.", code="worker-failed")
    if any(status not in ENDED for status in statuses):
        raise SystemExit(KILLED)


def work(listening: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve as one of several workers."""
    on_stop_signals(_leave)
    settings = Settings.load()
    try:
        app = _prepare_app(settings)
    except (ZooError, OSError) as error:
        print(f"zoo: error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(STARTUP_FAILURE) from None
    Server(_server_config(app, settings), app.state, listening, settings, on_start).run()


def _prepare_app(settings: Settings) -> FastAPI:
    """Return the application of this process, its galleries open; end the process at a stop signal meanwhile."""
    try:
        _prepare_process(settings)
        app = create_app(settings)
        app.state.collections.open()
    except SystemExit:
        os._exit(0)  # Python's own exit aborts while threads of libraries start
    return app


def _server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    proxies = os.environ.get("FORWARDED_ALLOW_IPS", "")
    return uvicorn.Config(
        app,
        loop="asyncio:SelectorEventLoop",
        http=HttpConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.drain_seconds,  # type: ignore[arg-type]  # it takes fractions
    )


def _prepare_process(settings: Settings) -> None:
    """Set up logging and this process's limits."""
    configure_logging(bool(settings.log_requests))
    # The client hears what is wrong with an image; Python would keep the text of every warning.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # Seconds that a thread keeps the interpreter; with Python's 0.005, decoding threads delay the event loop.
    sys.setswitchinterval(0.0005)
    raise_file_limit()
    # Its warnings say that clients send nonsense, as often as they like; the metrics count the refusals.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def listen(host: str, port: int, has_keys: bool) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: If the port or the address is invalid or taken ("invalid-value"), or other machines reach the
            address and there are no keys ("invalid-keys").
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"the port is {port}; expected a number from 0 to 65535.", code="invalid-value")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot serve at {host}:{port}: {reason}.", code="invalid-value") from None
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not has_keys:
        raise UsageError(
            f"other machines can reach {host}, and the service has no keys. Serve at 127.0.0.1, or set {READ_KEYS} to "
            "a key that every request then needs.",
            code="invalid-keys",
        )
    is_ipv6 = family == socket.AF_INET6
    try:
        listening = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_ipv6)
    except OSError as error:
        message = f"cannot serve at {host}:{port}: {error.strerror}. Choose another --port."
        raise UsageError(message, code="invalid-value") from None
    # Connections inherit this. Without it, the second part of an answer waits 40 ms for the acknowledgement of the
    # first; asyncio sets it only for sockets that name their protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _url_of(listening: socket.socket) -> str:
    """Return the address of a listening socket as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End with status 0. uvicorn raises the signal again after it has shut down."""
    on_stop_signals(signal.SIG_IGN)  # another one during Python's own exit would show a traceback
    raise SystemExit(0)
