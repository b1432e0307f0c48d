"""Pydantic models of all requests and answers: validation, the OpenAPI document and the types of the client.

Items in JSON refuse unknown fields, and `serving.forms.check_parameters` unknown parameters. Answers ignore them, so
that a client understands a newer service; older services do not send the fields that have a default.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass
from typing_extensions import TypeAliasType

from serving.gallery.filters import Filter
from serving.gallery.query import MAX_PARTS, MAX_WEIGHT
from serving.gallery.types import (
    DEFAULT_K,
    MAX_KEY,
    MAX_SOURCE,
    Attribution,
    Box,
    Hit,
    IndexStats,
    Item,
    ItemCopy,
    OtherItem,
    PutStatus,
    Stats,
)
from serving.parameters import (
    parse_box,
    parse_id_text,
    parse_item_id,
    parse_json_object,
    parse_key,
    parse_metadata,
    parse_number,
    parse_printable,
    parse_query_parts,
    parse_source,
    parse_truth,
    parse_weight,
    parse_whole_number,
    short_metadata,
)
from zoo.data.dataset import DataIdentity
from zoo.evaluation.calibration import Bin, Calibration

MAX_OFFSET = 10_000
MAX_QUERY_TEXT = 10_000
"""Largest number of characters of a text to search by; the model may read less of it."""
MAX_TEXT = 1000
"""Largest number of characters of a label."""
MAX_FIELDS = 100
"""Largest number of names in `fields`."""
MAX_LIMIT = 200
"""Largest number of items on a page."""
MAX_COUNTS = 10_000
"""Largest number of rows of GET /labels and GET /metadata."""
MAX_LINES = 10_000
"""Largest number of lines of POST /items/bulk."""


# Types of parameters

ItemKey = Annotated[
    str,
    BeforeValidator(parse_key),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}),
]
ItemId = Annotated[int, BeforeValidator(parse_item_id), WithJsonSchema({"type": "integer", "minimum": 0})]
IdText = Annotated[str, BeforeValidator(parse_id_text), WithJsonSchema({"type": "integer", "minimum": 0})]
Truth = Annotated[bool, BeforeValidator(parse_truth)]
Whole = Annotated[int, BeforeValidator(parse_whole_number)]
ImageNumber = Annotated[
    int,
    Field(ge=0),
    BeforeValidator(parse_whole_number),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
PageSize = Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(parse_whole_number)]
Similarity = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False), BeforeValidator(parse_number)]
Weight = Annotated[
    float,
    Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False),
    BeforeValidator(parse_number),
    AfterValidator(parse_weight),
]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(parse_number)]
Key = Annotated[
    str | None,
    BeforeValidator(parse_key),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_KEY}, {"type": "null"}]}),
]
Text = Annotated[str | None, Field(max_length=MAX_TEXT), AfterValidator(parse_printable)]
Source = Annotated[str | None, Field(max_length=MAX_SOURCE), AfterValidator(parse_source)]
JsonObject = Annotated[
    dict[str, Any], BeforeValidator(parse_json_object), WithJsonSchema({"type": "string", "format": "json"})
]
Metadata = Annotated[JsonObject, AfterValidator(parse_metadata)]
Crop = Annotated[Box, BeforeValidator(parse_box), WithJsonSchema({"type": "string", "examples": ["0.1,0.2,0.6,0.9"]})]
Texts = Annotated[list[str], FailFast()]
"""Texts; the first that is wrong is reported, since a report of half a million takes seconds and a gigabyte."""
Numbers = TypeAliasType("Numbers", Annotated[list[StrictFloat | StrictInt], FailFast()])
"""Numbers, likewise."""
Fields = Annotated[list[str], FailFast(), Field(max_length=MAX_FIELDS)]
"""Names of metadata."""
Rerank = Literal["none", "expansion", "augmentation", "diffusion", "reciprocal"]
EmbeddingFormat = Literal["json", "base64", "npy"]


# Requests


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True)


class RequestBody(_Request):
    """JSON object without unknown members. One of them is reported: a report of 100,000 takes seconds."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown(cls, value: Any) -> Any:
        unknown = [name for name in value if name not in cls.model_fields] if isinstance(value, dict) else []
        if len(unknown) < 2:
            return value
        return {name: member for name, member in value.items() if name in cls.model_fields or name == unknown[0]}


class FilterParameters(_Request):
    """Filter of items by label and metadata."""

    label: Texts = Field(default_factory=list, description="Only items of this label; repeat it for any of several")
    where: JsonObject = Field(
        default_factory=dict,
        description="Only items with this metadata. Each key has a value, a list of possible values, or a range (gt, "
        "gte, lt, lte) of numbers or of texts. If the metadata hold a list, one of its members must match; a missing "
        "key is null.",
        examples=['{"colour": ["red", "blue"], "year": {"gte": 1900, "lt": 1950}}'],
    )

    @property
    def selection(self) -> Filter:
        """The filter of these labels and metadata. Raises `UsageError`."""
        return Filter(tuple(self.label), self.where)


class QueryPartParameters(RequestBody):
    """Part of a query: image, text, id or key, exactly one of the four, with its weight."""

    image: ImageNumber | None = Field(
        None, description="Number of one of the images of the request, from 0; in a JSON body also base64 of an image"
    )
    text: str | None = Field(None, max_length=MAX_QUERY_TEXT, description="A text")
    id: IdText | None = Field(None, description="Id of an item")
    key: ItemKey | None = Field(None, description="Key of an item")
    weight: Weight = Field(1.0, description="Factor of its unit embedding; less than 0 to search for less of it")
    crop: Crop | None = Field(None, description="Part of the image: left,top,right,bottom as fractions of its sides")

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if sum(value is not None for value in (self.image, self.text, self.id, self.key)) != 1:
            raise ValueError('expected "image", "text", "id" or "key" in each part, one of the four')
        if self.crop is not None and self.image is None:
            raise ValueError('expected "crop" beside an "image"')
        return self


QueryParts = Annotated[
    list[QueryPartParameters],
    BeforeValidator(parse_query_parts),
    WithJsonSchema(
        {
            "type": "string",
            "format": "json",
            "contentSchema": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_PARTS,
                "items": QueryPartParameters.model_json_schema(),
            },
        }
    ),
]
"""Parts of a query: a list in JSON, or its text in a form."""


class SearchParameters(FilterParameters):
    """Parameters of POST /search: what to search by, and `serving.gallery.search.SearchOptions` by their names."""

    id: IdText | None = Field(None, description="Search by this item instead of an image")
    key: ItemKey | None = Field(None, description="Search by the item with this key instead of an image")
    text: Texts = Field(
        default_factory=list, description="Search by this text instead of an image; repeat it for several"
    )
    query: QueryParts | None = Field(
        None,
        description="Search by a weighted sum: a JSON list of parts, each with image (number of an image of the "
        "request; in JSON also base64), text, id or key, and perhaps weight (1; less than 0 for less of it) and crop",
        examples=['[{"image": 0}, {"text": "red"}, {"text": "leaves", "weight": -1}]'],
    )
    k: Whole = Field(DEFAULT_K, ge=1, description="Number of results, up to the max_k of GET /model")
    offset: Whole = Field(0, ge=0, le=MAX_OFFSET, description="Number of nearest items to skip")
    min_similarity: Similarity | None = Field(None, description="Only results of at least this similarity")
    min_p: Probability | None = Field(
        None, description="Only results of at least this p_same; needs a calibrated gallery"
    )
    crop: Crop | None = Field(
        None, description="Part of the image to search by: left,top,right,bottom as fractions of its sides"
    )
    rerank: Rerank = Field(
        "none",
        description="Search again with the first results (expansion), or order by each together with its nearest "
        "(augmentation), by diffusion over the results' neighbours, or by shared neighbours (reciprocal)",
    )
    group_by: Text = Field(
        None,
        description="label, or a key of the metadata: of the items with one value only the nearest is a result; an "
        "image without a value is a result of its own",
    )
    fields: Fields = Field(
        default_factory=list,
        description="Name of metadata that the results carry; repeat it for several, or * for all",
    )


class EmbedParameters(_Request):
    """Parameters of POST /embed."""

    format: EmbeddingFormat = "json"
    crop: Crop | None = Field(
        None, description="Part of the images to embed: left,top,right,bottom as fractions of the sides"
    )


class ItemDescription(_Request):
    """Description of the images that a request adds."""

    label: Text = Field(None, description="Label of all images")
    source: Source = Field(None, description="Source of the images")
    metadata: Metadata = Field(default_factory=dict, description="Metadata of all images, a JSON object")


class NewItemParameters(ItemDescription):
    """Description of the images that POST /items adds."""

    update: Truth = Field(False, description="Give label and metadata also to images that are already in the gallery")
    key: Key = Field(None, description="Your own name of the image, for a single image; no other item may have it")
    duplicates: Truth = Field(True, description="Name items that look like copies of the added images")


class DuplicateParameters(_Request):
    """Parameters of GET /items/{id}/duplicates."""

    mirrored: Truth = Field(True, description="Mirror images are copies too")


class BulkParameters(_Request):
    """Parameters of POST /items/bulk."""

    fingerprint: str | None = Field(
        None, max_length=MAX_TEXT, description="Fingerprint of the model that made the vectors; needed if there are any"
    )


class BulkLine(RequestBody):
    """Line of POST /items/bulk. image: base64 of its file; vector: numbers, or base64 of float32; one of the two."""

    key: ItemKey
    label: Text = None
    source: Source = None
    metadata: Annotated[dict[str, Any], AfterValidator(parse_metadata)] = Field(default_factory=dict)
    image: str | None = None
    vector: str | Numbers | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if (self.image is None) == (self.vector is None):
            raise ValueError('expected "image" or "vector", one of the two')
        return self


class ItemParameters(FilterParameters):
    """Parameters of GET /items."""

    offset: Whole = Field(0, ge=0, description="Number of items to skip")
    limit: PageSize = Field(50, description="Number of items")
    sample: PageSize | None = Field(None, description="Number of random items, instead of a page")


class CountParameters(_Request):
    """Parameters of GET /labels and GET /metadata."""

    limit: Whole = Field(1000, ge=1, le=MAX_COUNTS, description="Number of rows")


class ChangeParameters(_Request):
    """Parameters of PATCH, which may also be in its body."""

    replace: Truth = Field(False, description="The metadata replace those of the item, instead of being merged")


class ItemChange(RequestBody):
    """Change of an item; a field that is not sent stays.

    metadata: merged into those of the item (RFC 7396): null removes a key; with replace they are all that is left.
    """

    label: Text = None
    metadata: Annotated[dict[str, Any], AfterValidator(parse_metadata)] = Field(default_factory=dict)
    key: Key = None
    replace: Truth = False

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.model_fields_set - {"replace"}:
            raise ValueError('expected "label" (a text or null), "metadata" (an object) or "key" (a text or null)')
        return self

    def values(self, replace: bool) -> dict[str, Any]:
        """Return what to change, for `Store.describe`.

        Args:
            replace: Whether the metadata replace those of the item.

        Raises:
            RefusedError: From the function that merges metadata, if there would be too many.
        """
        values = {name: getattr(self, name) for name in self.model_fields_set - {"replace"}}
        if "metadata" in values and not (replace or self.replace):
            values["metadata"] = partial(short_metadata, self.metadata)
        return values


# Answers


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorDetail(_Answer):
    """Code for programs and message for people."""

    code: str
    message: str


class ErrorBody(_Answer):
    """Body of every refusal."""

    error: ErrorDetail


@dataclass(frozen=True, kw_only=True)
class SearchHit(Hit):
    """Neighbour of the query. similarity: the cosine, -1 to 1.

    p_same: probability that it has the query's class: the share of such results among those whose similarity is as far
    above the query's background, the mean similarity of its 21st to 50th result without filters; 1 for the identical
    image, null if the gallery was not calibrated. likely: whether it is likely to show what the query shows, by p_same
    or else by the model's default curve; null where neither is known, in a gallery of fewer than 30 images, for texts
    and for sums of several parts. thumbnail: path at the service. rerank_score: only of re-ranked results, which it
    orders, highest first. also: other items with the same image. group: only of grouped results, the value that no
    other result has. metadata: those that the request's fields name.
    """

    p_same: float | None = Field(...)
    likely: bool | None = Field(...)
    thumbnail: str
    rerank_score: float | None = Field(None, exclude_if=lambda score: score is None)
    also: tuple[OtherItem, ...] = ()
    group: Any = Field(None, exclude_if=lambda value: value is None)
    metadata: dict[str, Any] | None = Field(None, exclude_if=lambda metadata: metadata is None)


@dataclass(frozen=True, kw_only=True)
class ItemInfo(Item):
    """Item of the gallery. added_at: UTC, ISO 8601; change: number of the change that gave it its image; key: the
    client's name of it; thumbnail: path at the service.
    """

    thumbnail: str


@dataclass(frozen=True, kw_only=True)
class DuplicateItem(ItemInfo, ItemCopy):
    """Item that is a copy of another. similarity: cosine of their embeddings; distance: different bits of their
    perceptual hashes, of 256; mirrored: whether it is the mirror image; part: whether the distance is of the part that
    both show; width, height: sides of the image in pixels, null if they are not known.
    """


@dataclass(frozen=True, kw_only=True)
class ChangedItem(ItemInfo):
    """Item after a change. gallery_change: number of this change."""

    gallery_change: int


@dataclass(frozen=True, kw_only=True)
class AddedItem(ItemInfo):
    """Item of an image that was sent. notes: what was assumed about its file, such as the range of its numbers."""

    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PutItem(AddedItem):
    """Item that was put under its key.

    status: "created" (the key is new), "replaced" (it has another image now), "updated" (the same image with another
    source, label or metadata, or an image without a place that got the key) or "unchanged".
    """

    status: PutStatus


class BulkResult(_Answer):
    """Outcome of one line, by its number from 1: the id of its item and a status as of PUT, or "refused" and why.

    notes: what was assumed about the file of its image.
    """

    line: int
    key: str | None
    status: PutStatus | Literal["refused"]
    id: int | None = None
    notes: tuple[str, ...] = ()
    error: ErrorDetail | None = None


class BulkAnswer(_Answer):
    """Outcomes of all lines that are not empty, in their order, and their numbers by status."""

    created: int
    replaced: int
    updated: int
    unchanged: int
    refused: int
    results: list[BulkResult]


class _QueryPart(_Answer):
    id: int | None = None
    key: str | None = None
    text: str | None = None
    truncated: bool | None = None
    name: str | None = None


class QueryPartInfo(_QueryPart):
    """Part of a query. id: of the item, key: by which it was named; truncated: whether the model did not read the end
    of the text; name: of the image's file.
    """

    weight: float = 1.0


class QueryInfo(_QueryPart):
    """Query of a search, as its only part; parts: those of a weighted sum."""

    parts: list[QueryPartInfo] | None = None


class _SearchSummary(_Answer):
    k: int
    ordered_by: str
    notes: list[str] = []
    milliseconds: float


class SearchAnswer(_SearchSummary):
    """Neighbours of one query, nearest first. notes: labels and keys that no item has."""

    query: QueryInfo
    results: list[SearchHit]


class SearchPart(_Answer):
    """Neighbours of one of several queries, or the error that it met."""

    query: QueryInfo
    results: list[SearchHit] | None = None
    error: ErrorDetail | None = None


class SearchAnswers(_SearchSummary):
    """Answers to several queries, in their order."""

    searches: list[SearchPart]


class EmbeddingsAnswer(_Answer):
    """Unit embeddings in the order of the images: lists of numbers, or base64 of float32, little-endian.

    fingerprint: of the model.
    """

    model: str
    fingerprint: str
    dim: int
    embeddings: list[list[float]] | list[str]


class ItemPage(_Answer):
    """Page of items. total: number of items that the filter lets through."""

    total: int
    items: list[ItemInfo]
    offset: int | None = None
    limit: int | None = None
    notes: list[str] = []


class RefusedImage(_Answer):
    """Image of a request that was not added. number: its position, from 0."""

    number: int
    name: str
    error: ErrorDetail


class Differing(_Answer):
    """Image that was already there, as item `id`, with another label or other metadata.

    label: before the request; updated: whether the item now has those of the request.
    """

    number: int
    id: int
    label: str | None
    updated: bool
    message: str


class NearDuplicate(_Answer):
    """Image that was added as item `id` and looks like a copy of the items `of`, the nearest first."""

    number: int
    id: int
    of: list[int]
    message: str


class DuplicateItems(_Answer):
    """Copies of the item `id`, the nearest first. without_hash: number of items without a picture to compare."""

    id: int
    duplicates: list[DuplicateItem]
    without_hash: int


class AddedItems(_Answer):
    """Items of the images, in order, without the refused ones. new: number of items that were not there before."""

    new: int
    items: list[AddedItem]
    refused: list[RefusedImage]
    differing: list[Differing] = []
    near_duplicates: list[NearDuplicate] = []


class NoneAdded(AddedItems, ErrorBody):
    """Answer to a request none of whose images could be added; the error is that of the first image."""


class Removed(_Answer):
    """Id of the removed item."""

    removed: int


class LabelCount(_Answer):
    """Number of items with a label."""

    label: str
    items: int


class LabelCounts(_Answer):
    """Labels, the most frequent first. total: number of labels."""

    total: int
    labels: list[LabelCount]


class MetadataCount(_Answer):
    """Number of items with a value of a metadata key."""

    key: str
    value: str | int | float | bool
    items: int


class MetadataCounts(_Answer):
    """Metadata values, the most frequent first. total: number of values."""

    total: int
    values: list[MetadataCount]


class ModelLimits(_Answer):
    """Limits of one image and of one request."""

    max_bytes: int
    max_pixels: int
    max_images: int
    max_body: int
    max_k: int


class ServedModelInfo(_Answer):
    """Model of the gallery. text: {"length": number of tokens} of its text tower, null without one."""

    name: str
    method: str
    backbone: str
    dataset: str
    dim: int
    licence: str
    fingerprint: str
    preprocessing: dict[str, Any]
    text: dict[str, Any] | None = None
    runtime: str
    precision: str
    device: str
    gallery: Stats
    limits: ModelLimits


@dataclass(frozen=True, kw_only=True)
class CalibrationInfo(Calibration):
    """Calibration of p_same: its curve over the similarity above the query's background.

    error_not_measured: reason why the calibration has no error. reliability: promised and observed shares on labels
    outside the fit. measured: model, items, protocol, seed and date.
    """

    error_not_measured: str | None = None
    reliability: tuple[Bin, ...] = ()
    measured: Attribution


class ServiceInfo(_Answer):
    """Workers of the service, the limits of the whole service, and the share of one worker."""

    workers: int
    limits: dict[str, int | float]
    each_worker: dict[str, int | float]


@dataclass(frozen=True, kw_only=True)
class CollectionStats(Stats):
    """Numbers of the gallery, its index and its calibration (null if it was never calibrated)."""

    index: IndexStats
    calibration: CalibrationInfo | None
    service: ServiceInfo | None = None


class EvaluationStep(_Answer):
    """Metrics of one way to search, with intervals over classes and the loss since the step before and the first."""

    step: str
    of: str
    queries: int
    classes: int | None = None
    metrics: dict[str, float]
    intervals: dict[str, list[float]]
    loss: dict[str, Any] | None
    loss_in_all: dict[str, Any] | None


class ServedModel(_Answer):
    """Comparison of stored embeddings with those that the served model computes now from the same image files."""

    runtime: str
    precision: str
    device: str
    images: int
    least_cosine: float | None
    recall_at_1: dict[str, int | float] | None
    not_measured: str | None


class GalleryEvaluation(_Answer):
    """Measurement of the labelled gallery through the served index and model.

    not_calibrated: reason why there is no calibration. reliability: promised and observed shares in tenths of p_same,
    on classes that the curve was not fitted to, with 95 % intervals. changed_since: whether the gallery has changed.
    """

    date: str
    items: int
    change: int
    model: dict[str, str] | None = None
    data: DataIdentity | None = None
    index_recall_at_10: float | None
    served_model: ServedModel | None = None
    steps: list[EvaluationStep]
    calibration: CalibrationInfo | None
    not_calibrated: str | None
    reliability: list[Bin] = []
    changed_since: bool = False


class MapPoint(_Answer):
    """Item on the map, x and y from -1 to 1."""

    id: int
    x: float
    y: float
    label: str | None


class GalleryMap(_Answer):
    """Two-dimensional map of the gallery. explained: shares of the variance that the first two components hold."""

    total: int
    explained: list[float]
    points: list[MapPoint]


class CollectionInfo(_Answer):
    """Gallery of the service. name: null if it is the only one, at the root; path: of its page."""

    name: str | None
    path: str
    items: int
    model: str
    dim: int


class CollectionList(_Answer):
    """Collections that the key may read."""

    collections: list[CollectionInfo]


class Ready(_Answer):
    """Result of the check with a golden image."""

    ready: bool
