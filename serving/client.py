"""A small client of the service, on the standard library alone."""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from serving.gallery import Hit
from zoo.errors import GalleryError


class Client:
    """Talks to `zoo serve` at `url`.

    Refusals, a service out of reach, an answer that is none of its own and an image file that cannot be read raise
    `GalleryError` with the reason.
    """

    def __init__(self, url: str, timeout: float = 30) -> None:
        if not url.startswith(("http://", "https://")):
            raise GalleryError(f"{url!r} is no address of a service; it starts with http:// or https://.")
        self.url, self.timeout = url.rstrip("/"), timeout

    def search(self, image: bytes | str | Path | None = None, k: int = 10, item: int | None = None) -> list[Hit]:
        """The `k` nearest to an image (a path or a file's bytes) or to an item of the gallery."""
        values = {"k": k} if item is None else {"k": k, "id": item}
        body = _read(Path(image)) if isinstance(image, str | Path) else image or b""
        hits = self._ask("results", f"/search?{urlencode(values)}", body)
        return [Hit(hit["id"], hit["similarity"], hit["label"], hit["source"]) for hit in hits]

    def items(self, offset: int = 0, limit: int = 50, label: str | None = None) -> list[dict[str, Any]]:
        values = {"offset": offset, "limit": limit} | ({} if label is None else {"label": label})
        return self._ask("items", f"/items?{urlencode(values)}")

    def ready(self) -> bool:
        """Whether the service answers and can embed."""
        try:
            self._open(Request(f"{self.url}/readyz"))
        except (OSError, HTTPException, ValueError):
            return False
        return True

    def _ask(self, key: str, path: str, body: bytes | None = None) -> list[dict[str, Any]]:
        """What the answer has under `key`."""
        headers = {} if body is None else {"Content-Type": "application/octet-stream"}
        try:
            answer: list[dict[str, Any]] = json.loads(self._open(Request(f"{self.url}{path}", body, headers)))[key]
            return answer
        except HTTPError as error:
            with error:
                raise GalleryError(_reason(error)) from None
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise GalleryError(f"{self.url} does not answer: {reason}.") from None
        except (ValueError, KeyError, TypeError):
            raise GalleryError(f"{self.url} answers, but not as the search service does. Is it another one?") from None

    def _open(self, request: Request) -> bytes:
        with urlopen(request, timeout=self.timeout) as answer:  # the scheme was checked
            data: bytes = answer.read()
            return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GalleryError(f"{path} cannot be read: {error.strerror}.") from None


def _reason(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
