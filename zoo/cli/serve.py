"""`zoo serve`: a gallery over HTTP."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from serving.configuration import PREFIX, Configuration
from zoo.cli.options import OptionalPrecision
from zoo.console import note

app = typer.Typer()

LIMITS = {limit.name: limit for limit in fields(Configuration)}


def _limit(name: str) -> Any:
    """Return the option of a limit of the service, with the help text of its setting."""
    limit = LIMITS[name]
    return Option(metavar="N", help=f"{limit.metadata['help']} (default: {limit.default})")


@app.command(
    "serve",
    epilog="""\
  zoo serve gallery/ --port 3000
  zoo serve gallery/ --workers 4                               four processes; the cores are shared among them
  zoo serve gallery/ --precision int8                          queries embedded by the int8 variant (zoo export)
  zoo serve birds=gallery/ cars=gallery2/                      both, at /collections/birds and /collections/cars
  ZOO_SERVE_WRITE_KEYS=$KEY zoo serve gallery/                 this key may add and delete
  ZOO_SERVE_WRITE_KEYS_BIRDS=$KEY zoo serve birds=gallery/ cars=gallery2/   this key, to birds alone
  ZOO_SERVE_READ_KEYS=$KEY zoo serve gallery/ --host 0.0.0.0   other machines may search, with this key

Each limit is read from the environment as well: ZOO_SERVE_MAX_PIXELS for --max-pixels, and so on.""",
)
def serve(
    context: typer.Context,
    galleries: Annotated[
        list[str],
        Argument(metavar="GALLERY", help="gallery folder; several as NAME=GALLERY, served at /collections/NAME"),
    ],
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
    device: Annotated[
        str | None,
        Option(
            help="device of the models, and of the index if the installed FAISS sees a GPU: cpu, cuda, cuda:N "
            "or tensorrt (default: cpu)"
        ),
    ] = None,
    precision: OptionalPrecision = None,
    workers: Annotated[str | None, _limit("workers")] = None,
    max_bytes: Annotated[str | None, _limit("max_bytes")] = None,
    max_pixels: Annotated[str | None, _limit("max_pixels")] = None,
    max_k: Annotated[str | None, _limit("max_k")] = None,
    max_images: Annotated[str | None, _limit("max_images")] = None,
    max_body: Annotated[str | None, _limit("max_body")] = None,
    concurrency: Annotated[str | None, _limit("concurrency")] = None,
    queue_seconds: Annotated[str | None, _limit("queue_seconds")] = None,
    rate: Annotated[str | None, _limit("rate")] = None,
    burst: Annotated[str | None, _limit("burst")] = None,
    body_seconds: Annotated[str | None, _limit("body_seconds")] = None,
    answer_seconds: Annotated[str | None, _limit("answer_seconds")] = None,
    hang_seconds: Annotated[str | None, _limit("hang_seconds")] = None,
    drain_seconds: Annotated[str | None, _limit("drain_seconds")] = None,
    log_requests: Annotated[str | None, _limit("log_requests")] = None,
) -> None:
    """serve galleries over HTTP, with a page to search them"""
    from serving.galleries import doubled, from_words
    from serving.gallery.gallery import check_exists
    from serving.keys_file import read_keys

    served_galleries = from_words(galleries, model or [])
    for served in served_galleries:
        check_exists(Path(served.gallery))
    from serving.server import serve as run_server  # BentoML, after the arguments are checked

    os.environ |= read_keys(keys_file) if keys_file else {}
    limits = {name: context.params[name] for name in LIMITS}
    os.environ |= {f"{PREFIX}{name.upper()}": value for name, value in limits.items() if value is not None}
    for names in doubled(served_galleries):
        note(f"{' and '.join(names)} are one folder, and so the same gallery.")
    run_server(served_galleries, host, port, device, precision)
