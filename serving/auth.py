"""API keys, the host names and addresses that the service answers at, and the web pages that may ask it.

Keys come from the environment or a file, never from the command line, which other users of a machine can list. Without
a read key, everybody who reaches the service may search, except foreign web pages. Without a write key nobody may
change a gallery.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import RefusedError, error_response, refusal_of
from serving.settings import HOSTS, KEYS, READ_KEYS, WRITE_KEYS, Settings, key_variables
from zoo.errors import UsageError

if TYPE_CHECKING:
    from serving.dependencies import Collection, Collections

COOKIE = "zoo-key"
"""The cookie in which the page keeps its read key, since an <img> sends no header. It never allows a change."""
ANY_HOST = "*"
MIN_KEY_LENGTH = 16
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READING_POSTS = frozenset({"/search", "/embed"})
PROBES = frozenset({"/livez", "/readyz"})
"""Health checks. Platforms send them to an address instead of a name, without a key, and as often as they like."""
OPEN_PATHS = PROBES | {"", "/", "/docs", "/openapi.json"}
"""The page, which holds nothing of the gallery and asks for the key, and the probes."""
SERVICE_PATHS = frozenset({"/collections", "/metrics"})
"""Paths of the whole service, which collections with a name do not have."""
PAGE_FILES = "/page/"
MAX_COOKIES = 1024
"""Bytes of a Cookie header that is read; a larger one is no key."""
_ESCAPED = re.compile(r"\\([0-3][0-7][0-7]|.)")
"""A character of a quoted cookie: by its octal number, or after a backslash."""
_COLLECTION_PATH = re.compile(r"/collections/[^/]*(?=/|$)")


@dataclass(frozen=True)
class Keys:
    """SHA-256 digests of the keys of a collection; the keys themselves are not kept."""

    read: tuple[bytes, ...] = ()
    write: tuple[bytes, ...] = ()
    collection: str = ""

    @classmethod
    def load(cls, settings: Settings, collection: str = "") -> Keys:
        """Return the keys of every collection, and those of this one.

        Raises:
            UsageError: If a key is short or not ASCII ("weak-key").
        """
        secrets = {READ_KEYS: settings.read_keys, WRITE_KEYS: settings.write_keys, **settings.collection_keys}
        own = key_variables(collection) if collection else ("", "")
        read, write = (
            tuple(digest for name in names if name in secrets for digest in _digests(name, secrets[name]))
            for names in zip(KEYS, own, strict=True)
        )
        return cls(read, write, collection)

    @property
    def owner(self) -> str:
        """The name of the collection or service in messages."""
        return f"the collection {self.collection!r}" if self.collection else "this service"

    def has(self, key: str) -> bool:
        """Return whether it is one of the keys."""
        return _is_among(key, self.read + self.write)

    def may_read(self, key: str | None) -> bool:
        """Return whether a request with this key may read; write keys may."""
        return not self.read or self.has(key or "")

    def may_write(self, key: str | None) -> bool:
        """Return whether a request with this key may change the collection."""
        return _is_among(key or "", self.write)

    def check(self, method: str, path: str, scope: Scope) -> None:
        """Check the key of a request that is not for an open path.

        Args:
            method: The HTTP method.
            path: The path within the collection.
            scope: The ASGI scope.

        Raises:
            RefusedError: 401 if a key is missing or wrong, 403 if it is not enough.
        """
        if method in READING_METHODS or path in READING_POSTS:
            key = request_key(scope)
            if not self.may_read(key):
                raise unauthorised(key, "read", self.owner)
            return
        key = _header_key(scope)
        if not self.write:
            own = key_variables(self.collection)[1:] if self.collection else []
            variables = " or ".join([WRITE_KEYS, *own])
            owner = self.owner[0].upper() + self.owner[1:]
            reads = " and ".join(sorted(READING_POSTS))
            raise RefusedError(
                403,
                "read_only",
                f"{owner} takes no changes; POST is only for {reads}. To allow changes, start the service with "
                f"{variables} set.",
            )
        if not self.may_write(key):
            if key is not None and self.read and self.may_read(key):
                raise RefusedError(403, "write_key_needed", "This key may only read; changes need a write key.")
            raise unauthorised(key, "write", self.owner)


class TrustedHosts:
    """ASGI middleware that answers only to known host names, to no foreign page, and without read keys at loopback.

    A foreign page can let its own name lead to 127.0.0.1 (DNS rebinding). To the browser the service is then part of
    that page, which could read the whole gallery. Such a request still has the foreign name in its Host header. Any
    foreign page can also send forms and request pictures, and so let the service compute; it sees no answer, and cannot
    send a key in a header. Probes are answered in any case: they show nothing of the gallery.
    """

    def __init__(self, app: ASGIApp, hosts: str = "", has_keys: bool = False) -> None:
        """Initialise the middleware.

        Args:
            app: The application inside.
            hosts: Names besides those of loopback, separated by commas; "*" allows any.
            has_keys: Whether every collection has read keys.
        """
        self.app, self.has_keys = app, has_keys
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
        if self._is_foreign(headers, name) and not is_open(path) and _header_key(scope) is None:
            return RefusedError(403, "foreign_page", "A page of another site sent this request, without a key.")
        return None

    def _is_foreign(self, headers: Headers, name: str) -> bool:
        """Return whether a browser sends a request for a page of another origin; older ones tell only the page's."""
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        origin = headers.get("origin")
        if origin is None:
            return False
        page = host_name(origin.partition("://")[2])
        return page != name and page not in self.hosts


class Authentication:
    """ASGI middleware that finds the collection of a request and checks its key.

    It leaves the collection in `scope["state"]`, and the path of a named one in `root_path`, so that one set of routes
    answers for all of them. A HEAD request continues as GET: the server leaves the body of its answer out.
    """

    def __init__(self, app: ASGIApp, collections: Collections) -> None:
        self.app, self.collections = app, collections

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
        collection.keys.check(scope["method"], path, scope)
        _place(scope, collection, collection.path)


def _place(scope: Scope, collection: Collection | None, prefix: str) -> None:
    """Leave the collection of a request and the prefix of its path for the routes."""
    state = scope.setdefault("state", {})
    state["prefix"] = prefix
    if collection is not None:
        state["collection"] = collection
    if prefix:
        scope["root_path"] = prefix


def is_open(path: str) -> bool:
    """Return whether a path within a collection needs no key."""
    return path in OPEN_PATHS or path.startswith(PAGE_FILES)


def path_in_collection(scope: Scope) -> str:
    """Return the path of a request without /collections/NAME."""
    path: str = scope["path"]
    found = _COLLECTION_PATH.match(path)
    return path[found.end() :] if found else path


def request_key(scope: Scope) -> str | None:
    """Return the key that a request reads with, of its header or its cookie; it is looked up once."""
    state = scope.setdefault("state", {})
    if "key" not in state:
        key = _header_key(scope)
        state["key"] = key if key is not None else _cookie_key(scope)
    return cast("str | None", state["key"])


def client_of(scope: Scope, is_known: Callable[[str], bool]) -> str:
    """Return how a request's client is counted: by the digest of its key, or by its address.

    Args:
        scope: The ASGI scope.
        is_known: Whether a key is valid; any other key would make every request a new client.
    """
    key = request_key(scope)
    if key is not None and is_known(key):
        return hashlib.sha256(key.encode()).hexdigest()
    return str((scope.get("client") or ("",))[0])


def unauthorised(key: str | None, access: Literal["read", "write"], owner: str = "this service") -> RefusedError:
    """Return the refusal (401) of a request without a key, or with a wrong one."""
    if key is None:
        message = f"This needs a {access} key: send Authorization: Bearer KEY, or X-API-Key: KEY."
        return RefusedError(401, "key_needed", message)
    return RefusedError(401, "wrong_key", f"This is not a {access} key of {owner}.")


def host_name(header: str) -> str:
    """Return the name or address of a Host header in lower case, without port and brackets; "" if it is invalid."""
    found = re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+)(:[0-9]*)?", header.strip())
    return found[1].strip("[]").rstrip(".").lower() if found else ""


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


def _digests(variable: str, secret: SecretStr) -> list[bytes]:
    keys = [key.strip() for key in secret.get_secret_value().split(",") if key.strip()]
    if any(len(key) < MIN_KEY_LENGTH or not key.isascii() for key in keys):
        raise UsageError(
            f"{variable} has a key of fewer than {MIN_KEY_LENGTH} characters, or with characters that are not ASCII. "
            "Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            code="weak-key",
        )
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def _is_among(key: str, digests: tuple[bytes, ...]) -> bool:
    """Compare with every digest in constant time, so that the time tells nothing about the keys."""
    given = hashlib.sha256(key.encode()).digest()
    return sum(hmac.compare_digest(given, digest) for digest in digests) > 0


def _header_key(scope: Scope) -> str | None:
    """Return the key of `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    headers = Headers(scope=scope)
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    other = headers.get("x-api-key")
    return None if other is None else other.strip()


def _cookie_key(scope: Scope) -> str | None:
    """Return the key of the page's cookie, in time that grows with the header's length and not with its square."""
    header = Headers(scope=scope).get("cookie", "")
    for cookie in header.split(";") if len(header) <= MAX_COOKIES else ():
        name, _, value = cookie.strip().partition("=")
        if name == COOKIE:
            is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
            return _ESCAPED.sub(_unescaped, value[1:-1]) if is_quoted else value
    return None


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 8)) if len(found[1]) == 3 else found[1]
