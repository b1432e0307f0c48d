"""The service that is followed, asked over HTTP. What it answers is bounded, and is what it sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from serving.client.core import CUT_OFF, key_of
from serving.configuration import FOLLOW, FOLLOW_KEY
from serving.following.bounds import BEHIND, DIGEST, ROWS, digest_of
from serving.following.wire import Head, read_head
from serving.gallery.milvus_address import address_of
from zoo.errors import FollowingError, UsageError

CONNECT_SECONDS, READ_SECONDS = 1.0, 5.0
CHECK_SECONDS = 3.0
"""In place of `READ_SECONDS` where a query waits: a primary that does not answer must be known for one soon."""
MOST_BYTES = 2**26
_KEPT_SECONDS = 3.0
"""Less than a server keeps a connection that nobody uses, so that none is closed just as it is used again."""
_OTHERWISE_NAMED = ("no_such_collection", "name_a_collection")
_PASSED_ON = (b"accept", b"authorization", b"content-type", b"x-api-key", b"x-request-id")


@dataclass(frozen=True)
class Address:
    """`url`: of the service, without a path; `key`: to be shown to nobody."""

    url: str
    key: str | None = field(repr=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Address | None:
        """None where nobody is followed. Raises `UsageError` for what is no address, and for a key that is none."""
        text = environment.get(FOLLOW, "").strip().rstrip("/")
        if not text:
            return None
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if (
            url.scheme not in ("http", "https")
            or not url.host
            or url.userinfo
            or url.query
            or url.path not in ("", "/")
        ):
            raise UsageError(
                "--follow takes the address of a service, http://HOST:PORT, without a path or a password; its key goes "
                f"into {FOLLOW_KEY}. A gallery that has a name there is followed under that name: NAME=FOLDER."
            )
        return cls(text, key_of(environment.get(FOLLOW_KEY) or None, {}))


class AwayError(FollowingError):
    """The primary did not answer. `begun`: whether it may have begun to work on what it was asked."""

    def __init__(self, message: str, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


def check_shared(head: Head) -> None:
    """Raise `FollowingError` where the vectors are said to lie in what is no server, as a file of this host."""
    try:
        shared = head.backend is None or not address_of(head.backend[0]).embedded
    except UsageError:
        shared = False
    if not shared:
        raise FollowingError("the place of the vectors is no Milvus server.")


class Primary:
    """A collection of another service. Safe to use from several threads.

    is_behind: whether it follows a third one, and could not ask that one before it answered with its changes last.
    """

    def __init__(self, address: Address, path: str) -> None:
        """path: of the collection, "" at the root."""
        self.url, self.is_behind = address.url, False
        self._path = path
        self._own = {} if address.key is None else {"authorization": f"Bearer {address.key}"}
        limits = httpx.Limits(max_keepalive_connections=20, keepalive_expiry=_KEPT_SECONDS)
        headers = {"user-agent": "dml-zoo"}
        self._http = httpx.Client(base_url=address.url, headers=headers, limits=limits, follow_redirects=False)

    def close(self) -> None:
        self._http.close()

    def changes(
        self, after: int, history: str | None, limit: int = ROWS, seconds: float = READ_SECONDS
    ) -> tuple[Head, list[bytes]]:
        """The first line and the rows of GET /changes; seconds: without a byte, after which the primary is away.

        Raises `AwayError`, and `FollowingError` for no such answer.
        """
        known = {} if history is None else {"history": history}
        values: dict[str, str | int] = {"after": after, "limit": limit, **known}
        try:
            body = self._get(values, seconds)
        except CUT_OFF:  # a connection that was kept open for too long
            body = self._got(values, seconds)
        first, *lines = body.splitlines(keepends=True) or [b""]
        head = read_head(first)
        check_shared(head)
        return head, lines

    def pass_on(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, seconds: float | None
    ) -> httpx.Response:
        """What the primary answers to a client's own request; seconds: None for as long as it takes.

        target: path and query, as the client sent them.

        Raises `AwayError`.
        """
        sent = [pair for pair in headers if pair[0] in _PASSED_ON]
        url = self._http.base_url.copy_with(raw_path=target.encode("ascii"))
        wait = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        try:
            return self._http.request(method, url, headers=sent, content=body, timeout=wait)
        except httpx.HTTPError as error:
            raise self._away(error) from None

    def _got(self, values: Mapping[str, str | int], seconds: float) -> bytes:
        try:
            return self._get(values, seconds)
        except CUT_OFF as error:
            raise self._away(error) from None

    def _get(self, values: Mapping[str, str | int], seconds: float) -> bytes:
        wait = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        try:
            asked = self._http.stream("GET", f"{self._path}/changes", params=values, headers=self._own, timeout=wait)
            with asked as answer:
                body = self._bounded(answer)
        except CUT_OFF:
            raise
        except httpx.HTTPError as error:
            raise self._away(error) from None
        if answer.status_code != httpx.codes.OK:
            raise self._refused(answer.status_code, body)
        if answer.headers.get(DIGEST) != digest_of(body):
            raise FollowingError(f"what {self.url} sent is not what arrived (its SHA-256 differs).")
        self.is_behind = BEHIND in answer.headers
        return body

    def _bounded(self, answer: httpx.Response) -> bytes:
        pieces, size = [], 0
        for piece in answer.iter_bytes():
            size += len(piece)
            if size > MOST_BYTES:
                raise FollowingError(f"{self.url} sends more than {MOST_BYTES:,} bytes at once.")
            pieces.append(piece)
        return b"".join(pieces)

    def _refused(self, status: int, body: bytes) -> FollowingError:
        try:
            error = httpx.Response(status, content=body).json()["error"]
            said = self._named() if error["code"] in _OTHERWISE_NAMED else str(error["message"])[:500]
        except (ValueError, KeyError, TypeError):
            said = "it is no such service, or one of an older version"
        about = f" (the key is read from {FOLLOW_KEY})" if status in (401, 403) else ""
        return FollowingError(f"{self.url} answers {status}: {said}{about}")

    def _named(self) -> str:
        if not self._path:
            return f"its galleries have names. Follow each under its own: zoo serve NAME=FOLDER --follow {self.url}"
        return (
            f"it has no collection {self._path.rpartition('/')[2]}. Follow one under the name that it has there, as "
            f"GET {self.url}/collections lists them: zoo serve NAME=FOLDER --follow {self.url}; or, where it has one "
            f"gallery without a name: zoo serve FOLDER --follow {self.url}"
        )

    def _away(self, error: httpx.HTTPError) -> AwayError:
        reason = "it timed out" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
        begun = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        return AwayError(f"{self.url} does not answer: {reason}.", begun)
