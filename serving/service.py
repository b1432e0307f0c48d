"""The BentoML service: `zoo serve GALLERY`, or `ZOO_GALLERY=... bentoml serve serving.service:ImageSearch`.

BentoML keeps /livez, /healthz, /readyz and /schema.json for itself; every other path belongs to the mounted
application. It is mounted as a plain ASGI callable on purpose: of a mounted Starlette instance BentoML
takes only the paths that it knows, and answers the others with its own index page, scripts and docs.

Behind a proxy, or at another address than loopback, ZOO_SERVE_HOSTS names the hosts that requests may be made to.
"""

from __future__ import annotations

import gc
import os
from functools import cache

import bentoml

from serving.access import Access
from serving.app import create_app
from serving.configuration import Configuration
from serving.searcher import Searcher
from zoo.errors import UsageError

CONFIGURATION, ACCESS = Configuration.of(os.environ), Access.of(os.environ)


@cache
def searcher() -> Searcher:
    """The one searcher of this process, opened at first use from `ZOO_GALLERY` (and `ZOO_MODEL`, if it has moved).

    `ZOO_DEVICE`: what the model runs on, as `zoo.load` takes it.
    """
    gallery = os.environ.get("ZOO_GALLERY")
    if not gallery:
        raise UsageError("ZOO_GALLERY must name the gallery folder to serve.")
    model, device = os.environ.get("ZOO_MODEL"), os.environ.get("ZOO_DEVICE")
    return Searcher.open(gallery, model=model, limits=CONFIGURATION.limits, device=device)


@bentoml.asgi_app(create_app(searcher, CONFIGURATION, ACCESS))
@bentoml.service(
    name="image-search",
    traffic={"timeout": 60},
    logging={"access": {"enabled": False}},
    # BentoML keeps a set of series for every path that was ever asked for, so any client could fill the memory.
    metrics={"enabled": False},
)
class ImageSearch:
    def __init__(self) -> None:
        self.searcher = searcher()
        self.searcher.gallery.compact_in_background()
        # What is alive now stays: the collector need not look at it again, which takes the long pauses away.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    def __is_ready__(self) -> bool:
        return self.searcher.is_ready()

    @bentoml.on_shutdown  # type: ignore[untyped-decorator]
    def close(self) -> None:
        self.searcher.close()
