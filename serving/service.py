"""The BentoML service: `zoo serve GALLERY`, or `ZOO_GALLERY=... bentoml serve serving.service:ImageSearch`.

BentoML keeps /livez, /healthz, /readyz and /schema.json for itself; every other path belongs to the mounted
application. It is mounted as a plain ASGI callable on purpose: of a mounted Starlette instance BentoML
takes only the paths that it knows, and answers the others with its own index page, scripts and docs.

Behind a proxy, or at another address than loopback, ZOO_SERVE_HOSTS names the hosts that requests may be made to.
"""

from __future__ import annotations

import gc
import os
import warnings

import bentoml
import uvicorn.config

from serving.app import create_app
from serving.collections import Collections
from serving.configuration import HOSTS, Configuration
from serving.hosts import hosts_in
from serving.paths import OneLine
from serving.readiness import check_ready
from serving.wire import Wire

# uvicorn believes whoever connects from this machine what address it says to forward for, so that each local client
# could have as many rates as it likes. Read when its server is made, after this.
os.environ.setdefault("FORWARDED_ALLOW_IPS", "")

# Whoever makes the server, BentoML or serving.worker, lets uvicorn choose, which would take httptools without bounds.
uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{Wire.__module__}:{Wire.__name__}"

CONFIGURATION = Configuration.of(os.environ)
COLLECTIONS = Collections.of(os.environ)


@bentoml.asgi_app(create_app(COLLECTIONS, CONFIGURATION, hosts_in(os.environ.get(HOSTS, ""))))
@bentoml.service(
    name="image-search",
    traffic={"timeout": CONFIGURATION.answer_seconds + 5},  # ours comes first, and says so in JSON
    logging={"access": {"enabled": False}},
    # BentoML keeps a set of series for every path that was ever asked for, so any client could fill the memory.
    metrics={"enabled": False},
)
class ImageSearch:
    def __init__(self) -> None:
        # What is wrong with an image is said to whoever sent it. Python keeps the text of every warning that it shows.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        COLLECTIONS.open()
        # What is alive now stays: the collector need not look at it again, which takes the long pauses away.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    def __is_ready__(self) -> bool:
        return check_ready(COLLECTIONS)

    @bentoml.on_shutdown  # type: ignore[untyped-decorator]
    def close(self) -> None:
        COLLECTIONS.close()


ImageSearch.add_asgi_middleware(OneLine)  # type: ignore[attr-defined]  # the decorator made it a Service
