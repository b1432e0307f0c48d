"""What BentoML's /readyz answers. BentoML writes the answer, so that only a refusal can be put into words."""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.exceptions import HTTPException

from serving.collections import Collections
from serving.refusals import RefusedError, as_json
from zoo.errors import ZooError


def check_ready(collections: Collections) -> bool:
    """True where every collection embeds and finds its golden image, else an `HTTPException`: 503 with JSON."""
    if _is_ready(collections):
        return True
    names = [one.name for one in collections.each if one.name and not _is_ready(Collections([one]))]
    where = f" Collections: {', '.join(names)}." if names else ""
    message = f"The gallery cannot be searched, or a golden image has not the embedding that it should have.{where}"
    refusal = RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", message)
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    raise HTTPException(refusal.status, json.dumps(as_json(refusal)), headers)


def _is_ready(collections: Collections) -> bool:
    try:
        return collections.is_ready()
    except ZooError:
        return False
