"""Serve a gallery until told to stop: from this process, or from several that it looks after."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from serving import supervisor, worker
from serving.configuration import DEVICE, HOSTS, PRECISION, READ_KEYS, Configuration
from serving.galleries import COLLECTIONS, GALLERY, Place, to_environment
from serving.gallery.backends import check_workers
from serving.gallery.search import check_variant
from serving.hosts import ANY
from serving.keys import Keys
from zoo.errors import UsageError


def serve(
    places: Sequence[Place], host: str, port: int, device: str | None = None, precision: str | None = None
) -> None:
    """Print the address once queries are answered; return after SIGINT or SIGTERM, requests under way finished.

    places: the galleries, as `serving.galleries.from_words` gives them. Port 0 takes a free one. device: what their
    models run on, precision: the ONNX variant that embeds, as `zoo.load` takes them. Raises `UsageError` for an address
    that cannot be had or must not be, and for several workers of a gallery that is for one; `VariantNotFoundError` for
    a model without that variant.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, worker.leave)
    for stale in (GALLERY, COLLECTIONS):
        os.environ.pop(stale, None)
    os.environ |= to_environment(places)
    os.environ |= {name: value for name, value in ((DEVICE, device), (PRECISION, precision)) if value}
    configuration = Configuration.of(os.environ)
    for place in places:
        check_workers(Path(place.gallery), configuration.workers)
        if os.environ.get(PRECISION):
            check_variant(Path(place.gallery), place.model, os.environ[PRECISION])
    public = all(Keys.of(os.environ, one.name).read for one in places)
    listening = listen(host, port, public)
    with tempfile.TemporaryDirectory(prefix="zoo-serve-") as scratch, listening:
        # BentoML writes into its home; ours goes when the service does.
        os.environ.setdefault("BENTOML_HOME", scratch)
        os.environ.setdefault(HOSTS, ANY if public else host)
        _answer(listening, configuration, Path(scratch))


def _answer(listening: socket.socket, configuration: Configuration, scratch: Path) -> None:
    address = address_of(listening)

    def ready(what: str) -> None:
        print(f"{what}, at {address} (Ctrl-C ends)", flush=True)

    if configuration.workers == 1:
        worker.answer(listening, ready)
        return
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    counts = scratch / "counts"
    counts.mkdir()
    # Before anything here or in a worker loads prometheus_client, which reads it then.
    os.environ |= supervisor.environment(configuration.workers, str(counts))
    supervisor.supervise(listening, configuration, scratch, ready)


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
        # Its connections inherit it: else the second piece of an answer waits 40 ms for the client to acknowledge the
        # first. asyncio sets it only where a socket names its protocol, which a connection of this one does not.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind(address)
        listening.listen(worker.QUEUE)
    except OSError as error:
        listening.close()
        raise UsageError(f"{host}:{port} cannot be served at: {error.strerror}. Choose another --port.") from None
    return listening


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
