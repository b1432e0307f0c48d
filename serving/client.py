"""A small client of the service, on the standard library alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from serving.gallery import Hit
from zoo.errors import GalleryError


class Client:
    """Talks to `zoo serve` at `url`. Refusals and an unreachable service raise `GalleryError` with the reason."""

    def __init__(self, url: str, timeout: float = 30) -> None:
        if not url.startswith(("http://", "https://")):
            raise GalleryError(f"{url!r} is no address of a service; it starts with http:// or https://.")
        self.url, self.timeout = url.rstrip("/"), timeout

    def search(self, image: bytes | str | Path | None = None, k: int = 10, item: int | None = None) -> list[Hit]:
        """The `k` nearest to an image (a path or a file's bytes) or to an item of the gallery."""
        values = {"k": k} if item is None else {"k": k, "id": item}
        body = Path(image).read_bytes() if isinstance(image, str | Path) else image or b""
        answer = self._ask(f"/search?{urlencode(values)}", body)
        return [Hit(hit["id"], hit["similarity"], hit["label"], hit["source"]) for hit in answer["results"]]

    def items(self, offset: int = 0, limit: int = 50, label: str | None = None) -> list[dict[str, Any]]:
        values = {"offset": offset, "limit": limit} | ({} if label is None else {"label": label})
        items: list[dict[str, Any]] = self._ask(f"/items?{urlencode(values)}")["items"]
        return items

    def ready(self) -> bool:
        """Whether the service answers and can embed."""
        try:
            self._open(Request(f"{self.url}/readyz"))
        except (OSError, GalleryError):
            return False
        return True

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        headers = {} if body is None else {"Content-Type": "application/octet-stream"}
        try:
            return json.loads(self._open(Request(f"{self.url}{path}", body, headers)))
        except HTTPError as error:
            with error:
                raise GalleryError(_reason(error)) from None
        except URLError as error:
            raise GalleryError(f"{self.url} does not answer: {error.reason}.") from None

    def _open(self, request: Request) -> bytes:
        with urlopen(request, timeout=self.timeout) as answer:  # the scheme was checked
            data: bytes = answer.read()
            return data


def _reason(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
