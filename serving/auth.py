"""Guards of the service: the host names and addresses that it answers at, foreign web pages, and keys."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.dependencies import Collections, Endpoint
from serving.errors import RefusedError, error_response, refusal_of
from serving.keys import PROBES, SERVICE_PATHS, header_key, is_open, path_in_collection, request_key
from serving.settings import HOSTS, READ_KEYS

ANY_HOST = ANY_ORIGIN = "*"


class TrustedHosts:
    """ASGI middleware that answers only to known host names, to no foreign page, and without read keys at loopback.

    A foreign page can let its own name lead to 127.0.0.1 (DNS rebinding). To the browser the service is then part of
    that page, which could read the whole gallery. Such a request still has the foreign name in its Host header. Any
    foreign page can also send forms and request pictures, and so let the service compute; it sees no answer, and cannot
    send a key in a header. Probes are answered in any case: they show nothing of the gallery.
    """

    def __init__(
        self, app: ASGIApp, hosts: str = "", has_keys: bool = False, origins: frozenset[str] = frozenset()
    ) -> None:
        """Initialise the middleware.

        Args:
            app: The application inside.
            hosts: Names besides those of loopback, separated by commas; "*" allows any.
            has_keys: Whether every collection has read keys.
            origins: Origins of the foreign pages that may send requests; "*" allows any.
        """
        self.app, self.has_keys, self.origins = app, has_keys, origins
        self.hosts = {host.strip().lower() for host in hosts.split(",")} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (error_response(refusal) if refusal else self.app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> RefusedError | None:
        path = path_in_collection(scope)
        if path in PROBES:
            return None
        if not self.has_keys and not _is_private(scope.get("server")):
            return RefusedError(
                403,
                "public_without_key",
                "The service has no keys, so it answers only on its own machine. Start it at 127.0.0.1, or set "
                f"{READ_KEYS} to a key that every request then needs.",
            )
        headers = Headers(scope=scope)
        name = host_name(headers.get("host", ""))
        if not (ANY_HOST in self.hosts or name in self.hosts or is_loopback(name)):
            return RefusedError(
                421,
                "unknown_host",
                f"The service does not answer to the name {name[:80]!r}. Use 127.0.0.1 or localhost, or start it with "
                f"this name in {HOSTS}.",
            )
        if self._is_foreign(headers, name) and not is_open(path) and header_key(scope) is None:
            return RefusedError(403, "foreign_page", "A page of another site sent this request, without a key.")
        return None

    def _is_foreign(self, headers: Headers, name: str) -> bool:
        """Return whether a browser sends a request for a page of another origin; older ones tell only the page's."""
        if self.origins and self._is_allowed(headers):
            return False
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        origin = headers.get("origin")
        if origin is None:
            return False
        page = host_name(origin.partition("://")[2])
        return page != name and page not in self.hosts

    def _is_allowed(self, headers: Headers) -> bool:
        """Return whether a request is of a page of the allowed origins; that of a picture names only its referrer."""
        origin = headers.get("origin") or origin_of(headers.get("referer", ""))
        return ANY_ORIGIN in self.origins or origin in self.origins


class Authentication:
    """ASGI middleware that finds the collection of a request and checks its key.

    It leaves the collection in `scope["state"]`, and the path of a named one in `root_path`, so that one set of routes
    answers for all of them. A HEAD request continues as GET: the server leaves the body of its answer out.
    """

    def __init__(
        self, app: ASGIApp, collections: Collections, is_routed: Callable[[Scope], bool] = lambda scope: True
    ) -> None:
        """Initialise the middleware.

        Args:
            app: The application inside.
            collections: The collections of the service.
            is_routed: Whether the application has the path and the method of a request; if not, it says so, and no
                key would help.
        """
        self.app, self.collections, self.is_routed = app, collections, is_routed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._enter(scope)
        except RefusedError as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        if scope["path"] == scope.get("root_path"):  # a collection's page without its slash
            await RedirectResponse(f"{scope['path'].rpartition('/')[2]}/")(scope, receive, send)
            return
        if scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        inner = {**scope, "method": "GET"}
        try:
            await self.app(inner, receive, send)
        finally:
            scope.update({name: inner[name] for name in ("endpoint", "route") if name in inner})

    def _enter(self, scope: Scope) -> None:
        path = path_in_collection(scope)
        if is_open(path):
            _place(scope, *self.collections.find_open(scope["path"]))
            return
        collection = self.collections.find(scope["path"], lambda: request_key(scope))
        if collection is None and path not in SERVICE_PATHS:
            raise RefusedError(
                404,
                "name_a_collection",
                "The galleries of this service have names: use /collections/NAME/...; GET /collections lists them.",
            )
        if collection is None:
            return
        if collection.path and path in SERVICE_PATHS:
            raise refusal_of(HTTPException(404))
        try:
            collection.keys.check(scope["method"], path, scope)
        except RefusedError:
            if self.is_routed({**scope, "root_path": collection.path or scope.get("root_path", "")}):
                raise
        _place(scope, collection, collection.path)


def _place(scope: Scope, collection: Endpoint | None, prefix: str) -> None:
    """Leave the collection of a request and the prefix of its path for the routes."""
    state = scope.setdefault("state", {})
    state["prefix"] = prefix
    if collection is not None:
        state["collection"] = collection
    if prefix:
        scope["root_path"] = prefix


def host_name(header: str) -> str:
    """Return the name or address of a Host header in lower case, without port and brackets; "" if it is invalid."""
    found = re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+)(:[0-9]*)?", header.strip())
    return found[1].strip("[]").rstrip(".").lower() if found else ""


def origin_of(address: str) -> str:
    """Return the origin of a page's address, as https://shop.example from https://shop.example/chairs."""
    scheme, separator, rest = address.partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0]}"


def is_loopback(name: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # An IPv6 socket shows IPv4 connections as ::ffff:127.0.0.1.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _is_private(server: Sequence[Any] | None) -> bool:
    """Return whether the address of an ASGI server is local; a Unix socket has no port."""
    return server is None or server[1] is None or is_loopback(server[0])
