"""What a request to search asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from serving.configuration import Configuration
from serving.finding import DEFAULT_K, Ask, Box
from serving.gallery.filters import Filter
from serving.refusals import RefusedError
from serving.reranking import KINDS, NONE
from serving.uploads import File, Upload, invalid, item_id, json_object, real_number, whole_number

MAX_OFFSET = 10_000
PARAMETERS = frozenset({"id", "k", "offset", "min_similarity", "min_p", "label", "where", "crop", "rerank"})


@dataclass(frozen=True)
class Search:
    """Images to search by, or the id of an item."""

    ask: Ask
    images: tuple[File, ...] = ()
    item: int | None = None


def read_search(upload: Upload, configuration: Configuration) -> Search:
    """Raises `RefusedError` that says what was expected."""
    upload.check_names(PARAMETERS)
    ask, item = _ask(upload, configuration.max_k), upload.one("id")
    if upload.files and item is not None:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "image_and_id", "Search by an image or by the id of an item, not both."
        )
    if item is not None:
        if ask.crop is not None:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "crop_of_item", "Only an image that is sent can be cropped.")
        return Search(ask, item=item_id(item))
    return Search(ask, checked_images(upload))


def checked_images(upload: Upload) -> tuple[File, ...]:
    if not upload.files or not any(file.data for file in upload.files):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "no_image", "The request holds no image: its body or file is empty.")
    return upload.files


def read_crop(text: str | None) -> Box | None:
    """Left, top, right, bottom, each from 0 to 1."""
    if text is None:
        return None
    expected = "left,top,right,bottom as fractions of the image's sides, as 0.1,0.2,0.6,0.9"
    try:
        numbers = [real_number(part.strip(), "crop", 0, 1) or 0.0 for part in text.split(",")]
    except RefusedError:
        raise invalid("crop", expected) from None
    if len(numbers) != 4 or not (numbers[0] < numbers[2] and numbers[1] < numbers[3]):
        raise invalid("crop", expected)
    return numbers[0], numbers[1], numbers[2], numbers[3]


def _ask(upload: Upload, max_k: int) -> Ask:
    last: Mapping[str, str] = {name: values[-1] for name, values in upload.values.items()}
    rerank = last.get("rerank", NONE)
    if rerank not in KINDS:
        raise invalid("rerank", f"one of {', '.join(KINDS)}")
    return Ask(
        whole_number(last, "k", min(DEFAULT_K, max_k), 1, max_k),
        whole_number(last, "offset", 0, 0, MAX_OFFSET),
        real_number(last.get("min_similarity"), "min_similarity", -1, 1),
        real_number(last.get("min_p"), "min_p", 0, 1),
        Filter(upload.values.get("label", ()), json_object(last.get("where"), "where")),
        read_crop(last.get("crop")),
        rerank,
    )
