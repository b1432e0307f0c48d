"""Shapes of OpenAI's embeddings API, with images as the clients of vLLM, infinity and Jina send them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Discriminator, FailFast, Field, Tag, model_validator
from typing_extensions import TypeAliasType

from serving.errors import RefusedError
from serving.forms import ADDRESS, image_of_text
from serving.schemas import RequestBody

MAX_INPUTS = 2048
"""Largest number of members of `input`, as at OpenAI."""
IMAGE = re.compile(rf"\s*data:[^,\s]{{0,200}}[/;]|{ADDRESS.pattern}", re.IGNORECASE)
"""Begin of a data URI or an address: a string with it is an image, so that a wrong one is refused."""
LEAST_ENCODED, LEAST_LINE = 256, 60
"""Least number of characters of base64, and of each of its lines but the last, that is taken for an image although
nothing says so. No text is written in such words."""
SHORT_LINE = re.compile(rf"(?<!\S)\S{{1,{LEAST_LINE - 1}}}\s+\S")
"""A line that is too short for base64, with the begin of another one. A list of all lines would fill the memory."""
BASE64 = re.compile(r"[a-z0-9+/_=\s-]*", re.IGNORECASE)
"""Letters of base64, also of its form for addresses, which is refused."""
MAX_MESSAGES = 64
"""Largest number of messages of a conversation, which holds one image or one text."""


class ImageUrl(RequestBody):
    """Picture of a part: a data URI or plain base64. detail has no effect."""

    url: str
    detail: str | None = None


class ImagePart(RequestBody):
    """Picture as a part of a message or a member of `input`."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageUrl | str

    @property
    def encoded(self) -> str:
        """The data URI or the base64."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class TextPart(RequestBody):
    """Text as a part of a message or a member of `input`; Jina's clients send it without type."""

    type: Literal["text"] = "text"
    text: str


class PlainImage(RequestBody):
    """Picture as a member of `input`, as Jina's clients send it: a data URI or plain base64."""

    image: str

    @property
    def encoded(self) -> str:
        """The data URI or the base64."""
        return self.image


_SHAPES = {"image_url": "image_part", "text": "text_part", "image": "image"}
"""Shapes of parts and members of `input`, by their type or, without one, by the member that they have."""


def _shape_of(value: Any) -> str | None:
    """Return which of the shapes a part or a member of `input` has; None for another, such as the ids of tokens."""
    if isinstance(value, str):
        return "string"
    members = value if isinstance(value, Mapping) else {}
    named = [str(members["type"])] if "type" in members else members
    return next((shape for name, shape in _SHAPES.items() if name in named), None)


_EXPECTED = (
    'expected a text, a data URI, or an object as {"type": "image_url", "image_url": {"url": "data:..."}}; ids of '
    "tokens are not accepted (LangChain: check_embedding_ctx_length=False)"
)
Part = Annotated[
    Annotated[str, Tag("string")]
    | Annotated[ImagePart, Tag("image_part")]
    | Annotated[TextPart, Tag("text_part")]
    | Annotated[PlainImage, Tag("image")],
    Discriminator(_shape_of, custom_error_type="part", custom_error_message=_EXPECTED),
]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Parts = TypeAliasType(
    "Parts",
    Annotated[
        list[Part],
        FailFast(),
        Field(min_length=1, max_length=MAX_INPUTS),
        BeforeValidator(_listed, json_schema_input_type=Part | list[Part]),
    ],
)
"""The first part that is wrong is reported, as in `serving.schemas.Texts`."""


class Message(RequestBody):
    """Message of a conversation."""

    role: str
    content: Parts
    name: str | None = None


Messages = TypeAliasType("Messages", Annotated[list[Message], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)])


@dataclass(frozen=True)
class Content:
    """Image file or text of one embedding. place: where it is in the request, as input[2]."""

    place: str
    image: bytes | None = None
    text: str | None = None


class EmbeddingRequest(RequestBody):
    """Body of POST /v1/embeddings.

    input: a text, or an image as a data URI or base64, or a list of these; messages, instead of it: one conversation
    with one image or one text; modality: what strings are, if they do not tell. dimensions: a shorter embedding, if the
    model's numbers are in order of importance. user has no effect.
    """

    model: str | None = None
    input: Parts | None = None
    messages: Messages | None = None
    modality: Literal["text", "image"] | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise ValueError('expected "input" or "messages", one of the two')
        return self

    def contents(self, reads_texts: bool) -> list[Content]:
        """Return what to embed, one by one.

        Args:
            reads_texts: Whether the model embeds texts; if not, strings are images.

        Raises:
            RefusedError: If an image is an address or cannot be decoded, or the messages are not of one image or text.
        """
        parts = {f"input[{number}]": part for number, part in enumerate(self.input or ())}
        if self.messages is not None:
            parts = {"messages": self._conversation()}
        return [
            _of_string(part, place, self.modality, reads_texts) if isinstance(part, str) else _of_part(part, place)
            for place, part in parts.items()
        ]

    def _conversation(self) -> Part:
        """Return the one part of the messages of a user."""
        parts = [part for message in self.messages or () if message.role != "system" for part in message.content]
        if len(parts) != 1:
            message = "The messages must hold one image or one text: the model embeds them apart."
            raise RefusedError(400, "several_contents", message, parameter="messages")
        return parts[0]


class Embedding(BaseModel):
    """Embedding of a member of the request. truncated: only of a text whose end the model did not read."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = Field(False, exclude_if=lambda truncated: not truncated)


class Usage(BaseModel):
    """Tokens of the texts; images have none."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """Answer of POST /v1/embeddings: unit vectors, as numbers or as base64 of float32, little-endian."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelObject(BaseModel):
    """Model of GET /v1/models. dim: numbers of an embedding; modalities: what it embeds."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    dim: int
    fingerprint: str
    modalities: list[Literal["image", "text"]]


class ModelList(BaseModel):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class OpenAIErrorDetail(BaseModel):
    """Reason of a refusal. param: the member of the request, as input[2]; code: for programs."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(BaseModel):
    """Body of every refusal below /v1."""

    error: OpenAIErrorDetail


def _of_part(part: ImagePart | TextPart | PlainImage, place: str) -> Content:
    if isinstance(part, TextPart):
        return Content(place, text=part.text)
    return Content(place, image=_image(part.encoded, place))


def _of_string(text: str, place: str, modality: str | None, reads_texts: bool) -> Content:
    if modality == "text":
        return Content(place, text=text)
    if modality == "image" or IMAGE.match(text):
        return Content(place, image=_image(text, place))
    is_long = _may_be_encoded(text)
    if is_long or not reads_texts:
        try:
            return Content(place, image=_image(text, place))
        except RefusedError:
            if is_long and BASE64.fullmatch(text):
                raise
    return Content(place, text=text)


def _may_be_encoded(text: str) -> bool:
    """Return whether a string is as long, and its lines are, as those of base64."""
    return len(text) >= LEAST_ENCODED and SHORT_LINE.search(text) is None


def _image(text: str, place: str) -> bytes:
    try:
        return image_of_text(text)
    except RefusedError as refusal:
        raise RefusedError(400, refusal.code, f"Of {place}: {refusal.detail}", parameter=place) from None
