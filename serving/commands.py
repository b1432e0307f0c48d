"""The subcommands `zoo index` and `zoo serve`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from serving import runtimes
from serving.configuration import FOLLOW, FOLLOW_KEY, FOLLOW_KEYS, PREFIX, Configuration
from serving.confirming import and_marks, confirmed
from zoo.cli import strict
from zoo.cli.command import Command, always
from zoo.console import note, print_json, printable
from zoo.errors import UsageError

if TYPE_CHECKING:
    from serving.gallery import Gallery
    from serving.gallery.builder import Fill
    from serving.gallery.indexing import Report

_NAMED = 5
"""So many of the items that are to go are named."""


def _configure_index(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="name or folder of the model")
    parser.add_argument(
        "images",
        type=Path,
        metavar="DIR",
        help="folder of images; the folders inside it are the labels. Or a table of them (CSV): the column image (or "
        "path), from the table's folder, label, and further ones, kept as metadata",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="CSV",
        help="a file with the columns path, below the folder, and label, in place of the folders' names; further "
        "columns are kept as metadata",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="GALLERY", help="gallery to make or add to")
    runtimes.configure(parser)
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images embedded at once, default 64")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--on", choices=("here", "ray"), default="here", help="embed in this process (default) or on a Ray cluster"
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="of a running cluster, auto for this machine's; default: a Ray of this machine alone, for this run",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="items that are there get the labels and metadata of this run, whoever gave them others",
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove every item whose image is not among these, also what clients have added; asks first",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --prune: do not ask first, and do not remove over half of them"
    )
    strict.configure(parser)
    parser.add_argument(
        "--backend", metavar="WHERE", help="where the vectors are to lie in the end; see zoo gallery backend --help"
    )
    parser.add_argument("--ray-workers", type=int, metavar="N", help="processes that embed, default one a processor")


def _index(args: Namespace) -> int:
    from serving.gallery import backends
    from serving.gallery.builder import index_folder
    from zoo.datasets import check_data
    from zoo.datasets.dataset import FOLDER

    embed = _embedding(args)
    _check_pruning(args)
    check_data(args.images, FOLDER)  # a model takes a second to load
    if args.backend is not None:
        backends.check(args.backend)
    embedder = runtimes.loaded(args.model, args)
    progress = sys.stderr.isatty()
    report = index_folder(
        embedder,
        model_ref(args.model),
        args.images,
        args.out,
        args.batch_size,
        progress,
        labels=args.labels,
        embed=embed,
        update=args.update,
        prune=(_pruned_unasked if args.yes else _may_prune) if args.prune else None,
    )
    if args.backend is not None:
        backends.choose(args.out, args.backend)
    if args.json:
        print_json(report.to_json())
    else:
        print(printable(_told(report, args.prune)))
        _advise(args.out, report)
    return strict.status(args, report.unreadable)


def _check_pruning(args: Namespace) -> None:
    if args.yes and not args.prune:
        raise UsageError("--yes is for --prune.")
    if args.prune and not (args.yes or sys.stdin.isatty()):
        raise UsageError("--prune asks before it removes; say --yes as well where nobody is there to answer.")


def _pruned_unasked(gallery: Gallery, ids: list[int]) -> bool:
    if 2 * len(ids) > (items := gallery.count()):
        raise UsageError(
            f"{len(ids):,} of {items:,} items would be pruned, more than half; nothing was removed. Is a part of the "
            "folder missing, as one that is not mounted? If they are to go: without --yes, at a terminal, it asks."
        )
    return True


def _may_prune(gallery: Gallery, ids: list[int]) -> bool:
    named = ", ".join(gallery.item(one).source for one in ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")
    what = f"{len(ids):,} item(s) whose image is not among those indexed now ({named})"
    return confirmed(f"Remove {what}{and_marks(gallery.marks.of_items(ids))}?")


def _advise(path: Path, report: Report) -> None:
    from serving.gallery import Gallery
    from serving.gallery.hints import LARGE, untuned

    if report.items > LARGE:
        with Gallery.open(path) as gallery:
            if hint := untuned(gallery):
                print(hint)


def _embedding(args: Namespace) -> Fill | None:
    """Where the images are embedded; None: in this process."""
    if args.on == "here":
        if args.ray_address is not None or args.ray_workers is not None:
            raise UsageError("--ray-address and --ray-workers are for --on ray.")
        return None
    if args.runtime != "onnx":
        raise UsageError("the workers of a cluster run ONNX models alone; leave --runtime out.")
    from serving.gallery.distributed import on_ray
    from serving.gallery.image_files import root_of

    return on_ray(model_ref(args.model), root_of(args.images), args.ray_address, args.ray_workers)


def model_ref(model: str) -> str:
    """How the gallery remembers its model: a folder by its full path, so that it is found from anywhere."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if (folder / "card.json").is_file() else model


def _told(report: Report, pruning: bool) -> str:
    from serving.gallery.image_files import other_kinds

    lines = [f"left out {source}: {reason}" for source, reason in report.unreadable]
    lines.append(
        f"{report.gallery}: {report.items:,} images; {report.added:,} added, {report.already_there:,} were there "
        f"already, {len(report.unreadable):,} could not be read"
    )
    if report.moved:
        lines.append(f"{report.moved:,} lie elsewhere now, or are described otherwise: they were updated")
    if report.kept:
        lines.append(f"{report.kept:,} keep a label that is not their folder's; --update gives them that")
    if report.labels_unused or report.unlabelled:
        lines.append(
            f"{report.unlabelled:,} of the {report.found:,} image files have no row in the file of labels; "
            f"{len(report.labels_unused):,} of its rows name no image here"
        )
    for source, known, label in report.differing:
        lines.append(
            f"{source} is the image of item {known} as well, which stays as it is, with the label {label or 'none'}"
        )
    if report.other_files:
        lines.append(f"files of other kinds were not looked at: {other_kinds(report.other_files)}")
    if report.metadata:
        lines.append(f"kept as metadata: {', '.join(report.metadata)}")
    if report.pruned:
        lines.append(f"{report.pruned:,} whose image is not among these were removed")
    if stay := len(report.not_in_folder) - report.pruned:
        hint = "" if pruning else "; --prune removes such"
        lines.append(f"{stay:,} are not among the images indexed now: they stay in the gallery{hint}")
    return "\n".join(lines)


def _configure_serve(parser: ArgumentParser) -> None:
    parser.add_argument(
        "galleries", nargs="+", metavar="GALLERY", help="gallery folder; several as NAME=GALLERY, at /collections/NAME"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at, default 127.0.0.1")
    parser.add_argument("--port", type=int, default=3000, help="default 3000; 0 takes a free one")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="name or folder of the gallery's model, if it has moved; of several galleries as NAME=MODEL",
    )
    parser.add_argument(
        "--keys-file",
        type=Path,
        metavar="F",
        help=f"file with keys: lines ZOO_SERVE_READ_KEYS[_COLLECTION]=KEY,KEY or {FOLLOW_KEY}=KEY",
    )
    parser.add_argument(
        "--follow",
        metavar="URL",
        help="answer from a copy of the gallery of this service, http://HOST:PORT, which is made in GALLERY where that "
        f"is not there, and kept up with it; changes are passed on to it. Its key: {FOLLOW_KEY}",
    )
    parser.add_argument(
        "--device",
        help="what models run on, and the index where the FAISS that is installed sees a GPU: cpu (default), cuda, "
        "cuda:N or tensorrt",
    )
    parser.add_argument("--precision", metavar="P", help="the ONNX variant that embeds: fp32 (default), fp16 or int8")
    for one in fields(Configuration):
        parser.add_argument(
            f"--{one.name.replace('_', '-')}", metavar="N", help=f"{one.metadata['help']} (default {one.default})"
        )


def _serve(args: Namespace) -> None:
    from serving.galleries import doubled, from_words
    from serving.gallery.gallery import check_there
    from serving.keys_file import read_keys

    places = from_words(args.galleries, args.model)
    if args.follow is not None:
        os.environ[FOLLOW] = args.follow
    for place in places if not os.environ.get(FOLLOW) else []:
        check_there(Path(place.gallery))
    if os.environ.get(FOLLOW) and (names := doubled(places)):
        raise UsageError(f"{' and '.join(names[0])} are one folder; each that is followed needs a folder of its own.")
    from serving.server import serve  # BentoML, not before the arguments were looked at

    os.environ |= read_keys(args.keys_file) if args.keys_file else {}
    for one in fields(Configuration):
        if (value := getattr(args, one.name)) is not None:
            os.environ[PREFIX + one.name.upper()] = value
    for said in _notes(doubled(places)):
        note(said)
    serve(places, args.host, args.port, args.device, args.precision)


def _notes(same_folder: list[list[str]]) -> list[str]:
    """What was hardly meant so, and is served all the same."""
    notes = [f"{' and '.join(names)} are one folder, and so the same gallery." for names in same_folder]
    if os.environ.get(FOLLOW_KEY) and not os.environ.get(FOLLOW):
        notes.append(
            f"{FOLLOW_KEY} is set and no service is followed: name it with --follow. Keys with which others may "
            f"follow this service are in {FOLLOW_KEYS}."
        )
    return notes


INDEX = Command(
    "index a folder or table of images into a gallery that can be searched",
    _configure_index,
    _index,
    """\
  zoo index margin-conv4-glyphs photos/ --out gallery/
  zoo index margin-conv4-glyphs photos/ --out gallery/ --labels labels.csv
  zoo index margin-conv4-glyphs birds.csv --out gallery/     the images that a table lists: image,label,...
  zoo index margin-conv4-glyphs photos/ --out gallery/ --on ray --ray-workers 8          eight processes here
  zoo index margin-conv4-glyphs photos/ --out gallery/ --on ray --ray-address auto       those of this cluster
  zoo index margin-conv4-glyphs photos/ --out gallery/ --prune --yes --strict            every night, from cron

Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
    resumes=always,
)
SERVE = Command(
    "serve a gallery over HTTP, with a page to search it",
    _configure_serve,
    _serve,
    """\
  zoo serve gallery/ --port 3000
  zoo serve gallery/ --workers 4                               four processes; the cores are shared among them
  zoo serve gallery/ --precision int8                          queries embedded by the int8 variant (zoo export)
  zoo serve birds=gallery/ cars=gallery2/                      both, at /collections/birds and /collections/cars
  ZOO_SERVE_WRITE_KEYS=$KEY zoo serve gallery/                 this key may add and delete
  ZOO_SERVE_WRITE_KEYS_BIRDS=$KEY zoo serve birds=gallery/ cars=gallery2/   this key, to birds alone
  ZOO_FOLLOW_KEY=$KEY zoo serve copy/ --follow http://primary:3000   answers from a copy that is kept up
  ZOO_SERVE_READ_KEYS=$KEY zoo serve gallery/ --host 0.0.0.0   other machines may search, with this key

Each limit is read from the environment as well: ZOO_SERVE_MAX_PIXELS for --max-pixels, and so on.""",
)
