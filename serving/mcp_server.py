"""MCP server over stdio: tools that read a gallery, whose answers are those of HTTP.

A tool asks a service, or the application over a gallery in this process. There is no tool that changes anything, and a
picture is given as base64 or as an item: nothing outside the gallery can be read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

import httpx
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, Tool, ToolAnnotations
from pydantic import BeforeValidator, Field

from serving.app import create_app, lifespan
from serving.client.calls import connection
from serving.client.images import item_path
from serving.dependencies import Collection, Collections
from serving.errors import unknown_parameter
from serving.gallery.search import Searcher
from serving.model_swap import CurrentSearcher
from serving.parameters import parse_number
from serving.schemas import CountParameters, DuplicateParameters, ItemParameters, SearchParameters
from serving.settings import Settings
from zoo.errors import ServiceError, UsageError

SECONDS = 60
"""Seconds to wait for a service."""
INSTRUCTIONS = """\
Search a gallery of images: by a picture (base64), by a text if the model reads texts, by an item of the gallery (its id
or its key), or by a weighted sum of these. Items have a label and metadata. similarity is the cosine of two embeddings,
and p_same the probability that two pictures are of one class. Begin with the tool model, and with labels and metadata
for filters."""


def _about(model: Any, name: str) -> Any:
    """Return the description of a parameter of HTTP."""
    return Field(description=model.model_fields[name].description)


# Texts are `str`, with "" for none: the package mcp reads the JSON in a string of any other type.
Picture = Annotated[
    str, Field(description="Picture to search by: base64 of an image file, or a data URI; never a path or a URL")
]
Number = Annotated[int | None, BeforeValidator(parse_number)]
Id = Annotated[Number, Field(ge=0, description="Id of an item of the gallery")]
ItemId = Annotated[int, BeforeValidator(parse_number), Field(ge=0, description="Id of an item")]
Key = Annotated[str, Field(description="Your own key of an item of the gallery, instead of its id")]
Labels = Annotated[list[str] | None, _about(SearchParameters, "label")]
Where = Annotated[dict[str, Any] | None, _about(SearchParameters, "where")]
Fields = Annotated[list[str] | None, _about(SearchParameters, "fields")]
Size = Annotated[Number, _about(SearchParameters, "k")]
Offset = Annotated[Number, _about(SearchParameters, "offset")]
Parts = Annotated[list[dict[str, Any]] | None, _about(SearchParameters, "query")]
Text = Annotated[str, Field(description="Text to search by, if the model reads texts")]
Least = Annotated[float | None, _about(SearchParameters, "min_similarity")]
Page = Annotated[Number, _about(ItemParameters, "limit")]
Skip = Annotated[Number, _about(ItemParameters, "offset")]
Rows = Annotated[Number, _about(CountParameters, "limit")]
Mirrored = Annotated[bool | None, _about(DuplicateParameters, "mirrored")]
Answer = dict[str, Any]


class Tools:
    """Tools of the server. `http` reaches a collection: paths are those of the collection's routes."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def search(
        self,
        image: Picture = "",
        text: Text = "",
        id: Id = None,  # noqa: A002  (as in HTTP)
        key: Key = "",
        query: Parts = None,
        k: Size = None,
        offset: Offset = None,
        label: Labels = None,
        where: Where = None,
        min_similarity: Least = None,
        fields: Fields = None,
    ) -> Answer:
        """Find the items nearest to a picture, a text, an item or a sum: give one of image, text, id, key and query."""
        body: Answer = {"image": image, "text": text, "id": id, "key": key, "query": query, "k": k, "offset": offset}
        body |= {"label": label, "where": where, "min_similarity": min_similarity, "fields": fields}
        return await self._ask("POST", "/search", json=_given(body))

    async def item(self, id: Id = None, key: Key = "") -> Answer:  # noqa: A002
        """Return one item with its label and metadata, by its id or its key."""
        places = [place for place in (id, key) if place not in (None, "")]
        if len(places) != 1:
            raise ToolError("missing_value: give the id or the key of an item, one of the two.")
        try:
            path = item_path(places[0])
        except UsageError as error:
            raise ToolError(f"invalid_key: {error}") from None
        return await self._ask("GET", path)

    async def items(self, label: Labels = None, where: Where = None, offset: Skip = None, limit: Page = None) -> Answer:
        """List items page by page, of some labels and metadata."""
        parameters = {"label": label, "where": where and json.dumps(where), "offset": offset, "limit": limit}
        return await self._ask("GET", "/items", params=_given(parameters))

    async def thumbnail(self, id: ItemId) -> Image:  # noqa: A002
        """Show the small picture of an item."""
        response = await self._send("GET", f"/items/{id}/thumbnail")
        return Image(data=response.content, format=response.headers["content-type"].rpartition("/")[2])

    async def duplicates(
        self,
        id: ItemId,  # noqa: A002
        mirrored: Mirrored = None,
    ) -> Answer:
        """Find the items that show the same picture as an item: resized, recompressed, cropped, framed or mirrored."""
        flag = None if mirrored is None else "true" if mirrored else "false"
        return await self._ask("GET", f"/items/{id}/duplicates", params=_given({"mirrored": flag}))

    async def labels(self, limit: Rows = None) -> Answer:
        """List the labels and how many items have each, the most frequent first."""
        return await self._ask("GET", "/labels", params=_given({"limit": limit}))

    async def metadata(self, limit: Rows = None) -> Answer:
        """List the values of the metadata by key, the most frequent first, for the filter `where`."""
        return await self._ask("GET", "/metadata", params=_given({"limit": limit}))

    async def model(self) -> Answer:
        """Describe the model, whether it reads texts, the size of the gallery and the limits of a request."""
        return await self._ask("GET", "/model")

    async def evaluation(self) -> Answer:
        """Return the last measurement of the gallery: how often the nearest items have the label of the query."""
        return await self._ask("GET", "/evaluate")

    async def _ask(self, method: str, path: str, **options: Any) -> Answer:
        answer: Answer = (await self._send(method, path, **options)).json()
        return answer

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer to a request. Raises `ToolError` with the code and the message of a refusal."""
        try:
            request = self.http.build_request(method, path, **options)
        except (httpx.InvalidURL, ValueError):  # a surrogate, or labels and a filter of more than 64 KiB in an address
            raise ToolError("invalid_value: a text is not valid Unicode, or the filter is too long.") from None
        try:
            response = await self.http.send(request)
        except httpx.HTTPError as error:
            raise ToolError(f"The service does not answer: {error or type(error).__name__}.") from None
        if response.is_success:
            return response
        try:
            refusal = response.json()["error"]
            raise ToolError(f"{refusal['code']}: {refusal['message']}")
        except (ValueError, KeyError, TypeError):
            raise ToolError(f"The service answers with status {response.status_code}.") from None


class GalleryServer(MCPServer):
    """MCP server whose tools refuse unknown parameters and wrong types: a misspelt filter must not let everything
    through.
    """

    async def list_tools(self) -> list[Tool]:
        """Return the tools, whose schemas allow no further parameters."""
        closed = {"additionalProperties": False}
        tools = await super().list_tools()
        return [tool.model_copy(update={"input_schema": tool.input_schema | closed}) for tool in tools]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. Raises `ToolError` for a parameter that it does not have, or a refusal of the service.

        null is a parameter that is not given, as in HTTP. The text "null" is that only if the parameter is a text.
        """
        known = {tool.name: tool.input_schema.get("properties", {}) for tool in await self.list_tools()}
        unknown = next((word for word in arguments if word not in known.get(name, arguments)), None)
        if unknown is not None:
            refusal = unknown_parameter(unknown, list(known[name]))
            raise ToolError(f"{refusal.code}: {refusal.detail}")
        given = {word: value for word, value in arguments.items() if value is not None}
        for word, value in given.items():
            if isinstance(value, str) and value.strip() == "null" and known[name][word].get("type") != "string":
                raise ToolError(f"invalid_{word}: the text {value!r} is not a value of {word}.")
        return await super().call_tool(name, given, context)


def create_server(http: httpx.AsyncClient) -> MCPServer:
    """Return the MCP server of a collection that `http` reaches."""
    tools = Tools(http)
    server = GalleryServer("dml-zoo", instructions=INSTRUCTIONS, version=version("dml-zoo"), log_level="WARNING")
    for tool in (
        tools.search,
        tools.item,
        tools.items,
        tools.thumbnail,
        tools.duplicates,
        tools.labels,
        tools.metadata,
        tools.model,
        tools.evaluation,
    ):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return server


@asynccontextmanager
async def reaching_gallery(gallery: str, model: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the application over a gallery in this process.

    Args:
        gallery: The folder of the gallery, or its address in Milvus.
        model: The name or folder of its model, if that has moved.

    Raises:
        GalleryNotFoundError: If there is no gallery.
    """
    settings = Settings.model_construct()
    current = CurrentSearcher(lambda: Searcher.open(gallery, model, settings.limits))
    app = create_app(settings, Collections([Collection("", current)]))
    async with lifespan(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as http:
            yield http


@asynccontextmanager
async def reaching_service(url: str, collection: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service, with the key in ZOO_SERVE_KEY.

    Args:
        url: The URL of the service.
        collection: The name of the gallery, if the service has several.

    Raises:
        GalleryError: If it is not the URL of a service.
        ServiceError: If the service does not answer or refuses the key.
    """
    place, headers = connection(url, None, collection)
    async with httpx.AsyncClient(base_url=place, headers=headers, timeout=SECONDS) as http:
        try:
            response = await http.get("/model")
        except httpx.HTTPError as error:
            raise ServiceError(f"{url} does not answer: {error or type(error).__name__}.") from None
        if not response.is_success:
            message = f"{url} answers with status {response.status_code}: {response.text[:300]}"
            raise ServiceError(message, response.status_code)
        yield http


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}
