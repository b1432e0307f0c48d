"""State of a collection and of the service: /model, /stats, /collections, /metrics, /livez and /readyz."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from serving.dependencies import Collection, CollectionDep, Collections, CollectionsDep, Endpoint, SettingsDep
from serving.errors import RefusedError
from serving.gallery.calibration import calibration_json
from serving.gallery.search import Searcher
from serving.gallery.types import IndexStats
from serving.keys import request_key, unauthorised
from serving.metrics import exposition, set_gallery
from serving.openapi import READING, refusals
from serving.schemas import (
    CalibrationInfo,
    CollectionList,
    CollectionStats,
    ModelLimits,
    Ready,
    ServedModelInfo,
    ServiceInfo,
)
from serving.settings import Settings
from zoo.errors import ZooError
from zoo.paths import thread_count

router = APIRouter()
service = APIRouter()
"""Routes of every service, also of one without a gallery."""
probes = APIRouter()
"""Routes that take any query parameter, which platforms may add."""


@router.get("/model", summary="The model, the gallery's size, and the limits of a request", responses=READING)
async def model(collection: CollectionDep, settings: SettingsDep) -> ServedModelInfo:
    def read(searcher: Searcher) -> ServedModelInfo:
        embedder, limits = searcher.embedder, searcher.limits
        card = embedder.card
        return ServedModelInfo(
            **{name: getattr(card, name) for name in ("name", "method", "backbone", "dataset", "dim", "licence")},
            **{name: getattr(embedder, name) for name in ("runtime", "precision", "device")},
            fingerprint=card.fingerprint,
            preprocessing=card.preprocessing.to_json(),
            text=None if card.text is None else {"length": card.text.length},
            gallery=searcher.gallery.store.stats(),
            limits=ModelLimits(
                max_bytes=limits.max_bytes,
                max_pixels=limits.max_pixels,
                max_images=settings.max_images,
                max_body=settings.max_body,
                max_k=settings.max_k,
            ),
        )

    await to_thread.run_sync(collection.current.latest)
    return await collection.call(read)


@router.get("/stats", summary="Items, labels, the index and its recall, the calibration", responses=READING)
async def stats(collection: CollectionDep, settings: SettingsDep) -> CollectionStats:
    def read(searcher: Searcher) -> CollectionStats:
        gallery = searcher.gallery
        calibration = calibration_json(gallery)
        return CollectionStats(
            **asdict(gallery.store.stats()),
            index=gallery.index.stats(),
            calibration=CalibrationInfo(**calibration) if calibration else None,
            service=_service_info(settings),
        )

    return await collection.call(read)


def _service_info(settings: Settings) -> ServiceInfo:
    limits = {name: getattr(settings, name) for name in ("concurrency", "queue_seconds", "rate", "burst")}
    share = {**settings.share()._asdict(), "threads": thread_count()}
    return ServiceInfo(workers=settings.workers, limits=limits, each_worker=share)


@router.get("/collections", summary="The collections that the key may read", responses=refusals(401, 422, 429, 503))
async def collections(request: Request, collections: CollectionsDep) -> CollectionList:
    key = request_key(request.scope)
    readable = collections.readable(key)
    if not readable:
        raise unauthorised(key, "read")
    shown = [collection for collection in collections.galleries if collection in readable]
    rows = await to_thread.run_sync(lambda: [collection.info() for collection in shown])
    return CollectionList(collections=rows)


@service.get(
    "/metrics",
    summary="Metrics in Prometheus's text format",
    response_class=Response,
    responses=refusals(401, 422) | {200: {"description": "The metrics", "content": {"text/plain": {}}}},
)
async def metrics(request: Request, collections: CollectionsDep) -> Response:
    """Return the metrics of all collections; the key must read all of them."""
    key = request_key(request.scope)
    if len(collections.readable(key)) < len(collections.all):
        raise unauthorised(key, "read", "every collection")
    text, media_type = await to_thread.run_sync(_exposition, collections)
    return Response(text, headers={"content-type": media_type, "cache-control": "no-store"})


def _exposition(collections: Collections) -> tuple[bytes, str]:
    for collection in collections.galleries:
        _measure(collection)
    return exposition()


def _measure(collection: Collection) -> None:
    """Set the gauges of a collection."""

    def read(searcher: Searcher) -> tuple[int, IndexStats]:
        return searcher.gallery.store.count(), searcher.gallery.index.stats()

    try:
        ready = collection.is_ready()
        items, index = collection.current.run(read)
    except (ZooError, RefusedError):
        set_gallery(collection.name, False)
    else:
        set_gallery(collection.name, ready, items, index.recall)


@probes.get("/livez", summary="Whether the process is alive", response_class=Response)
async def livez() -> Response:
    return Response()


@probes.get("/readyz", summary="Whether golden images are embedded and found as they should", responses=refusals(503))
async def readyz(request: Request, collections: CollectionsDep) -> Ready:
    """Check one collection, or at the root all of them. It is not ready while the service stops."""
    if request.app.state.draining:
        raise RefusedError(503, "stopping", "The service is stopping.")
    endpoint: Endpoint | None = getattr(request.state, "collection", None)
    cpu_queue: Any = request.app.state.cpu_queue
    check = collections.is_ready if endpoint is None else endpoint.is_ready
    if not await cpu_queue.run_aside(check):
        raise RefusedError(503, "not_ready", "A golden image does not have the embedding that it should have.")
    return Ready(ready=True)
