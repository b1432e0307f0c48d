"""`zoo mcp`: a gallery as tools of a language model, over the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from zoo.console import note
from zoo.errors import UsageError

app = typer.Typer()


@app.command(
    "mcp",
    epilog="""\
  zoo mcp gallery/
  zoo mcp http://127.0.0.1:3000                            of a service; its key is in ZOO_SERVE_KEY
  zoo mcp http://127.0.0.1:3000 --collection birds

Hosts start it themselves; in their configuration it is a server with the command zoo and these arguments.""",
)
def mcp(
    gallery: Annotated[
        str,
        Argument(metavar="GALLERY", help="gallery folder, its address in Milvus, or the URL of a service (zoo serve)"),
    ],
    collection: Annotated[
        str | None, Option(metavar="NAME", help="collection to search, if the service has several")
    ] = None,
    model: Annotated[str | None, Option(help="name or folder of the gallery's model, if it has moved")] = None,
) -> None:
    """let a language model search a gallery, by MCP over stdin and stdout"""
    import anyio

    from serving.gallery.gallery import check_exists
    from serving.mcp_server import create_server, reaching_gallery, reaching_service

    is_url = gallery.startswith(("http://", "https://"))
    if not is_url and collection is not None:
        raise UsageError("--collection is for the URL of a service.", code="conflicting-options")
    if is_url and model is not None:
        raise UsageError("--model is for a gallery; a service chooses its models.", code="conflicting-options")
    if not is_url:
        check_exists(gallery)

    async def serve() -> None:
        opened = reaching_service(gallery, collection) if is_url else reaching_gallery(gallery, model)
        async with opened as http:
            note(f"{gallery} is open for a client of MCP on stdin and stdout (Ctrl-C ends)")
            await create_server(http).run_stdio_async()

    anyio.run(serve)
