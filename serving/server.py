"""Serve a gallery from this process until it is told to stop.

uvicorn runs the BentoML service's application here, as BentoML's own worker does, without BentoML's supervisor: no
second process, no control socket, and a gallery that cannot be served ends the command instead of being tried
again for ever.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import signal
import socket
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from serving.access import Access
from serving.configuration import HOSTS, READ_KEYS
from serving.hosts import ANY
from zoo.errors import GalleryError, UsageError


def serve(gallery: Path, model: str | None, host: str, port: int) -> None:
    """Print the address once queries are answered; return after SIGINT or SIGTERM, requests under way finished.

    Port 0 takes a free one. Raises `UsageError` for an address that cannot be had or must not be.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    public = bool(Access.of(os.environ).keys.read)
    listening = listen(host, port, public)
    with tempfile.TemporaryDirectory(prefix="zoo-serve-") as scratch, listening:
        # BentoML writes into its home; ours goes when the service does.
        os.environ.setdefault("BENTOML_HOME", scratch)
        os.environ["ZOO_GALLERY"] = str(gallery.resolve())
        if model:
            os.environ["ZOO_MODEL"] = model
        os.environ.setdefault(HOSTS, ANY if public else host)
        _run(listening)


def listen(host: str, port: int, public: bool) -> socket.socket:
    """A listening socket; at an address that others reach only where it is `public`: where it asks for a key."""
    if not 0 <= port <= 65535:
        raise UsageError(f"a port is a number from 0 to 65535, not {port}.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is empty or too long
        raise UsageError(f"{host}:{port} is no address to serve at: {error}.") from None
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not public:
        raise UsageError(
            f"{host} can be reached from other machines, and the service asks for no key. Serve at 127.0.0.1, or set "
            f"{READ_KEYS} to a key that every request then needs."
        )
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise UsageError(f"{host}:{port} cannot be served at: {error.strerror}. Choose another --port.") from None
    return listening


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _run(listening: socket.socket) -> None:
    import uvicorn

    from serving import service

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    searcher = service.searcher()
    config = uvicorn.Config(
        service.ImageSearch.to_asgi(),  # type: ignore[attr-defined]  # the decorator made it a Service
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(service.CONFIGURATION.drain_seconds),
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                count, name = searcher.gallery.count(), searcher.embedder.card.name
                what = f"{count:,} {'image' if count == 1 else 'images'}, embedded by {name}"
                print(f"{what}, at {address_of(listening)} (Ctrl-C ends)", flush=True)

    server = Server(config)
    server.run(sockets=[listening])
    if not server.started:
        raise GalleryError("the service could not start; the log above says why.")


def _leave(number: int, frame: FrameType | None) -> Any:
    """uvicorn raises the signal again once it has shut down; either way the command ends well."""
    raise SystemExit(0)
