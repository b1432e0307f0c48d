"""Evaluation of the labelled gallery through the served index and model, and its map.

What measures is imported by the first request for it: most services never get one, and it takes memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import APIRouter

from serving.dependencies import CollectionDep
from serving.errors import RefusedError
from serving.gallery import VectorGallery
from serving.gallery.search import Searcher
from serving.openapi import READING, WRITING, refusals
from serving.schemas import GalleryEvaluation, GalleryMap
from zoo.errors import ItemNotFoundError
from zoo.files import LockHeldError

router = APIRouter()


@router.post(
    "/evaluate",
    summary="Measure the labelled items exactly and through the index, and calibrate p_same",
    response_model_exclude_unset=True,
    responses=WRITING | refusals(409),
)
async def evaluate(collection: CollectionDep) -> GalleryEvaluation:
    """Measure R@1, R@5, R@10 and MAP@R; needs a write key. It may take minutes and runs once at a time.

    served_model: of up to 256 items whose image files are still there, the least cosine of the stored embeddings to
    those that the served runtime and precision make now, and R@1 through the index by each. reliability: in each tenth
    of p_same, the mean promise and the observed share with its 95 % interval, for pairs of classes that the curve was
    not fitted to.
    """

    def measure(searcher: Searcher) -> GalleryEvaluation:
        from serving.gallery.evaluate import evaluate_gallery, served_model_report

        with _locked(searcher.gallery):
            return GalleryEvaluation(**evaluate_gallery(searcher.gallery, served_model_report(searcher)))

    return await collection.call(measure)


@router.get("/evaluate", summary="The last evaluation", responses=READING | refusals(404))
async def kept_evaluation(collection: CollectionDep) -> GalleryEvaluation:
    """Return the last evaluation. changed_since: whether the gallery has changed since."""

    def read(searcher: Searcher) -> GalleryEvaluation:
        from serving.gallery.evaluate import last_evaluation

        gallery = searcher.gallery
        values = last_evaluation(gallery)
        if values is None:
            raise ItemNotFoundError("this gallery was not evaluated yet; POST /evaluate does it.")
        changed = gallery.store.change() != values["change"]
        return GalleryEvaluation(**values, changed_since=changed)

    return await collection.call(read)


@router.get("/map", summary="Items as points of a plane, up to 3,000 of them", responses=READING)
async def gallery_map(collection: CollectionDep) -> GalleryMap:
    """Return a two-dimensional map of the embeddings, from -1 to 1 on one scale.

    explained: the shares of the variance in the first two principal components, from which the map starts.
    """
    return await collection.call(lambda searcher: GalleryMap(**collection.atlas.map_of(searcher.gallery)))


@contextmanager
def _locked(gallery: VectorGallery) -> Iterator[None]:
    """Allow one evaluation of a gallery at a time, in all processes. Raises `RefusedError` (409) for another one."""
    try:
        with gallery.store.evaluation_lock():
            yield
    except LockHeldError:
        message = "This gallery is being evaluated. GET /evaluate returns the result afterwards."
        raise RefusedError(409, "being_evaluated", message) from None
