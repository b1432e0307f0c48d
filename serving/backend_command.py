"""`zoo gallery backend`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli.command import Command
from zoo.console import print_json


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder")
    parser.add_argument("backend", nargs="?", help="faiss, or the address of a collection; left out: say which it is")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _run(args: Namespace) -> None:
    from serving.gallery.backends import backend_of, choose
    from serving.gallery.gallery import check_there

    check_there(args.gallery)
    if args.backend is not None:
        choose(args.gallery, args.backend)
    found = backend_of(args.gallery)
    if args.json:
        print_json({"gallery": str(args.gallery), "backend": found})
    else:
        print(f"{args.gallery}: vectors in {found}")


BACKEND = Command(
    "keep a gallery's vectors in Milvus, or again in FAISS",
    _configure,
    _run,
    """  zoo gallery backend gallery/                                 which it is
  zoo gallery backend gallery/ milvus://localhost:19530/birds   a server; its key, if any, in ZOO_MILVUS_TOKEN
  zoo gallery backend gallery/ milvus:///data/birds.db          embedded (milvus-lite), for one process at a time
  zoo gallery backend gallery/ faiss                            back; the collection stays where it is
The SQLite file stays the truth, on one machine: Milvus holds vectors and ids, and is filled from it. Start a service
anew afterwards. Needs dml-zoo[milvus].""",
)
