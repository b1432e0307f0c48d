"""What a request to search asks for."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from serving.configuration import Configuration
from serving.gallery.filters import Filter
from serving.gallery.search import DEFAULT_K, NONE, RERANKINGS, Box, SearchOptions
from serving.refusals import RefusedError
from serving.uploads import File, Upload, check_names, invalid, item_id, json_object, real_number, whole_number

MAX_OFFSET = 10_000
MAX_TEXT = 10_000
"""Characters of a text to search by; how much of it counts is the model's matter."""
PARAMETERS = frozenset({"id", "text", "k", "offset", "min_similarity", "min_p", "label", "where", "crop", "rerank"})


@dataclass(frozen=True)
class Search:
    """Images to search by, or texts, or the id of an item."""

    ask: SearchOptions
    images: tuple[File, ...] = ()
    item: int | None = None
    texts: tuple[str, ...] = ()

    def singly(self) -> list[Search]:
        """One for each image or text."""
        images = [Search(self.ask, (image,)) for image in self.images]
        return images or [Search(self.ask, texts=(text,)) for text in self.texts]


def read_search(upload: Upload, configuration: Configuration) -> Search:
    """Raises `RefusedError` that says what was expected."""
    check_names(upload.values, PARAMETERS)
    ask, item = _ask(upload, configuration.max_k), upload.one("id")
    texts = upload.values.get("text", ())
    if texts and (upload.files or item is not None):
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "text_and_other", "Search by a text, an image or the id of an item: one of them."
        )
    if upload.files and item is not None:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "image_and_id", "Search by an image or by the id of an item, not both."
        )
    if ask.crop is not None and (item is not None or texts):
        code = "crop_of_item" if item is not None else "crop_of_text"
        raise RefusedError(HTTPStatus.BAD_REQUEST, code, "Only an image that is sent can be cropped.")
    if item is not None:
        return Search(ask, item=item_id(item))
    if texts:
        _check_texts(texts, ask, configuration.max_images)
        return Search(ask, texts=texts)
    return Search(ask, checked_images(upload))


def _check_texts(texts: tuple[str, ...], ask: SearchOptions, most: int) -> None:
    if len(texts) > most:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "too_many_texts", f"At most {most} texts are searched by at once.")
    if max(map(len, texts)) > MAX_TEXT:
        message = f"A text to search by has at most {MAX_TEXT:,} characters."
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "text_too_long", message)
    if ask.min_p is not None:
        # Texts and images lie farther apart than images of one class do, so that p_same says nothing of them.
        message = "min_p is of pairs of images; what a text finds is cut by min_similarity."
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, "min_p_of_text", message)


def checked_images(upload: Upload) -> tuple[File, ...]:
    """The files of the request. Raises `RefusedError` where there is none, or nothing in any."""
    if any(file.data for file in upload.files):
        return upload.files
    message = (
        "The image is empty: not a byte came."
        if upload.files
        else "The request holds no image. Send it in the field 'image' of a form, curl -F image=@FILE, or as the body, "
        "with an image/... content type."
    )
    raise RefusedError(HTTPStatus.BAD_REQUEST, "no_image", message)


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


def _ask(upload: Upload, max_k: int) -> SearchOptions:
    several = ("label", "text")
    given = {name: upload.one(name) or "" for name in upload.values if name not in several}
    rerank = given.get("rerank", NONE)
    if rerank not in RERANKINGS:
        raise invalid("rerank", f"one of {', '.join(RERANKINGS)}")
    return SearchOptions(
        whole_number(given, "k", min(DEFAULT_K, max_k), 1, max_k),
        whole_number(given, "offset", 0, 0, MAX_OFFSET),
        real_number(given.get("min_similarity"), "min_similarity", -1, 1),
        real_number(given.get("min_p"), "min_p", 0, 1),
        Filter(upload.values.get("label", ()), json_object(given.get("where"), "where")),
        read_crop(given.get("crop")),
        rerank,
    )
