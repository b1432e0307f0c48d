"""The application as a BentoML service, for `bentoml serve` and `bentoml build`.

BentoML answers /livez, /healthz, /readyz and /schema.json itself; every other path belongs to the application. It is
mounted as a plain ASGI callable, since BentoML replaces the routes for unknown paths of a mounted FastAPI instance.

ZOO_SERVE_HOSTS names the hosts at which the service answers, if it is behind a proxy or not at loopback.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress

import bentoml
import uvicorn.config
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from serving.app import create_app, freeze_objects
from serving.dependencies import Collections
from serving.errors import RefusedError, error_json
from serving.settings import Settings
from zoo.errors import ZooError
from zoo.paths import thread_count

# uvicorn believes every local client that names another address in X-Forwarded-For, so that a client could have as many
# rates as it likes. It reads this variable when its server is made.
os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
# BentoML leaves the choice of a parser to uvicorn, whose own connections read heads of any size.
uvicorn.config.HTTP_PROTOCOLS["auto"] = "serving.connections:HttpConnection"
# BentoML reports usage to its makers without this.
os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")

SETTINGS = Settings.load()
COLLECTIONS = Collections.load(SETTINGS)
APP = create_app(SETTINGS, COLLECTIONS)
os.environ["OMP_NUM_THREADS"] = str(min(thread_count(), SETTINGS.share().cores))


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request."""
    await APP(scope, receive, send)


@bentoml.asgi_app(application)
@bentoml.service(
    name="image-search",
    workers=SETTINGS.workers,
    traffic={"timeout": SETTINGS.answer_seconds + 5},  # the application's own deadline comes first, with JSON
    logging={"access": {"enabled": False}},
    # BentoML keeps metrics for every path that a client makes up, which would fill the memory.
    metrics={"enabled": False},
)
class ImageSearch:
    """The galleries of one worker."""

    def __init__(self) -> None:
        # The client hears what is wrong with an image; Python would keep the text of every warning.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        COLLECTIONS.open()
        freeze_objects()

    def __is_ready__(self) -> bool:
        """Return whether every gallery can be searched; otherwise answer 503 with JSON."""
        with suppress(ZooError):
            if COLLECTIONS.is_ready():
                return True
        refusal = RefusedError(503, "not_ready", "A gallery cannot be searched.")
        headers = {"content-type": "application/json", "cache-control": "no-store"}
        raise HTTPException(refusal.status_code, json.dumps(error_json(refusal)), headers)

    @bentoml.on_shutdown  # type: ignore[untyped-decorator]
    def close(self) -> None:
        """Close the galleries."""
        COLLECTIONS.close()
