"""Which names the service answers to, and at which addresses.

A page from elsewhere may have its own name lead to 127.0.0.1 (DNS rebinding); to the browser the service is then that
page's own, and all of the gallery could be read. Such a request still carries the foreign name in its Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.configuration import HOSTS, READ_KEYS
from serving.refusals import RefusedError, respond

ANY = "*"


class KnownHosts:
    """ASGI middleware that refuses a request to a host that is neither loopback nor one of `hosts`.

    With `ANY` among them all are answered.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self.app, self.hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ANY not in self.hosts:
            name = host_name(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
            if name not in self.hosts and not is_loopback(name):
                await respond(_misdirected(name))(scope, receive, send)
                return
        await self.app(scope, receive, send)


class KeptPrivate:
    """ASGI middleware that refuses what arrives at an address which other machines reach.

    For a service that asks for no key: `zoo serve` does not start one at such an address, others that run the
    application may, and `bentoml serve` does unless it is told otherwise.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_private(scope.get("server")):
            await respond(_public())(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _is_private(server: Sequence[Any] | None) -> bool:
    """server: of an ASGI scope, an address and its port; a Unix socket, which is of this machine, has no port."""
    return server is None or server[1] is None or is_loopback(server[0])


def host_name(header: str) -> str:
    """The name or address in a Host header, in lower case, without port and brackets; "" for what is none."""
    found = re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+)(:[0-9]*)?", header.strip())
    return found[1].strip("[]").rstrip(".").lower() if found else ""


def is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # An IPv6 socket tells of IPv4 connections as ::ffff:127.0.0.1.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def hosts_in(text: str) -> list[str]:
    """The names in the environment variable's value."""
    return [host.strip() for host in text.split(",") if host.strip()]


def _misdirected(name: str) -> RefusedError:
    return RefusedError(
        HTTPStatus.MISDIRECTED_REQUEST,
        "unknown_host",
        f"The service does not answer to the name {name[:80]!r}. Ask for it at 127.0.0.1 or localhost, or start it "
        f"with this name in {HOSTS}.",
    )


def _public() -> RefusedError:
    return RefusedError(
        HTTPStatus.FORBIDDEN,
        "public_without_key",
        "The service asks for no key, so it answers on its own machine alone. Start it at 127.0.0.1, or set "
        f"{READ_KEYS} to a key that every request then needs.",
    )
