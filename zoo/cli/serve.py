"""`zoo serve`: galleries, or a model alone, over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from serving.settings import PRECISION, Settings, parse_galleries, read_keys_file, same_folders
from zoo.cli.options import ADVANCED, LIMITS, make_graph
from zoo.console import note
from zoo.errors import UsageError

app = typer.Typer()

NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
"""Settings that are options."""
COMMON, ENDING = ("workers", "log_requests"), ("shutdown_delay", "drain_seconds")


def _number(name: str) -> Any:
    """Return the option of a setting; `Settings` checks its value."""
    field = Settings.model_fields[name]
    text = f"{field.description} (default: {field.default})"
    panel = None if name in COMMON else ADVANCED if name in ENDING else LIMITS
    return Option(metavar="N", help=text, rich_help_panel=panel)


@app.command(
    "serve",
    epilog="""\
  zoo serve gallery/ --port 3000
  zoo serve gallery/ --workers 4                               four processes; the cores are shared among them
  zoo serve gallery/ --precision int8                          queries embedded by the int8 variant (zoo export)
  zoo serve --embed photos                                     embeddings without a gallery, as OpenAI's API
  zoo serve birds=gallery/ cars=gallery2/                      both, at /collections/birds and /collections/cars
  ZOO_SERVE_WRITE_KEYS=$KEY zoo serve gallery/                 this key may add and delete
  ZOO_SERVE_WRITE_KEYS_BIRDS=$KEY zoo serve birds=gallery/ cars=gallery2/   this key, to birds alone
  ZOO_SERVE_READ_KEYS=$KEY zoo serve gallery/ --host 0.0.0.0   other machines may search, with this key

Each limit is read from the environment as well: ZOO_SERVE_MAX_PIXELS for --max-pixels, and so on.""",
)
def serve(
    context: typer.Context,
    galleries: Annotated[
        list[str] | None,
        Argument(
            metavar="[GALLERY...]",
            help="gallery folder, or its address in Milvus (milvus://host:port/name); several as NAME=GALLERY, served "
            "at /collections/NAME",
        ),
    ] = None,
    embed: Annotated[
        str | None,
        Option(
            metavar="MODEL", help="model to serve without a gallery, by name or folder, as OpenAI's API (default: none)"
        ),
    ] = None,
    host: Annotated[str, Option(help="address to serve at")] = "127.0.0.1",
    port: Annotated[int, Option(help="port to serve at; 0 takes a free one")] = 3000,
    model: Annotated[
        list[str] | None,
        Option(help="name or folder of the gallery's model, if it has moved; of several galleries as NAME=MODEL"),
    ] = None,
    keys_file: Annotated[
        Path | None,
        Option(
            metavar="F",
            help="file of lines ZOO_SERVE_READ_KEYS[_COLLECTION]=KEY,KEY (default: environment)",
        ),
    ] = None,
    origins: Annotated[
        str | None,
        Option(metavar="O", help="origins of web pages that may search: https://shop.example, or * (default: none)"),
    ] = None,
    device: Annotated[
        str | None,
        Option(
            help="device of the models, and of the index if the installed FAISS sees a GPU: cpu, cuda, cuda:N "
            "or tensorrt (default: cpu)"
        ),
    ] = None,
    precision: Annotated[
        str | None,
        Option(metavar="P", help="ONNX variant that embeds: fp32, fp16 or int8, made by zoo export (default: fp32)"),
    ] = None,
    workers: Annotated[str | None, _number("workers")] = None,
    max_bytes: Annotated[str | None, _number("max_bytes")] = None,
    max_pixels: Annotated[str | None, _number("max_pixels")] = None,
    max_k: Annotated[str | None, _number("max_k")] = None,
    max_images: Annotated[str | None, _number("max_images")] = None,
    max_body: Annotated[str | None, _number("max_body")] = None,
    concurrency: Annotated[str | None, _number("concurrency")] = None,
    queue_seconds: Annotated[str | None, _number("queue_seconds")] = None,
    rate: Annotated[str | None, _number("rate")] = None,
    burst: Annotated[str | None, _number("burst")] = None,
    body_seconds: Annotated[str | None, _number("body_seconds")] = None,
    answer_seconds: Annotated[str | None, _number("answer_seconds")] = None,
    shutdown_delay: Annotated[str | None, _number("shutdown_delay")] = None,
    drain_seconds: Annotated[str | None, _number("drain_seconds")] = None,
    log_requests: Annotated[str | None, _number("log_requests")] = None,
) -> None:
    """serve galleries over HTTP, with a page to search them"""
    from serving.gallery.gallery import check_exists, model_at

    if bool(galleries) == bool(embed):
        raise UsageError("name the galleries to serve, or a model with --embed; one of the two.", code="missing-value")
    addresses = parse_galleries(galleries or [], model or [])
    for address in addresses:
        check_exists(address.gallery)
    from serving import run  # FastAPI and FAISS, after the arguments are checked

    os.environ |= read_keys_file(keys_file) if keys_file else {}
    names = [*NUMBERS, "origins"]
    flags = {name: context.params[name] for name in names if context.params[name] is not None}
    variant = precision or os.environ.get(PRECISION) or "fp32"
    for place in [embed] if embed else [address.model or model_at(str(address.gallery))[1] for address in addresses]:
        make_graph(place, variant)
    for group in same_folders(addresses):
        note(f"{' and '.join(group)} are one folder, and so the same gallery.")
    run.serve(addresses, host, port, flags, device, precision, embed)
