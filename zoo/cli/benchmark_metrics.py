"""`zoo benchmark metrics`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command

if TYPE_CHECKING:
    from zoo.report.metric_examples import Embedded, Ranked

FORMATS = (".png", ".svg", ".pdf", ".html")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"also as a picture or a page: {', '.join(FORMATS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the points (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")


def _run(args: Namespace) -> int:
    from zoo.report.metric_examples import embeddings, rankings

    _check(args)
    embedded, ranked = embeddings(args.seed), rankings()
    if args.out is not None:
        _write(args.out, embedded, ranked)
    if args.json:
        _print_json(args.seed, embedded, ranked)
    else:
        _print_tables(embedded, ranked)
        if args.out is not None:
            print(f"\nThe picture: {args.out}")
    return 0


def _check(args: Namespace) -> None:
    from zoo.errors import UsageError
    from zoo.report.pictures import check_available

    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: a seed is a whole number from 0 on.")
    if args.out is None:
        return
    if args.out.suffix.lower() not in FORMATS:
        raise UsageError(f"--out {args.out}: its name ends in one of {', '.join(FORMATS)}.")
    check_available()


def _write(path: Path, embedded: list[Embedded], ranked: list[Ranked]) -> None:
    from zoo.console import write_errors
    from zoo.files import write_bytes
    from zoo.report.metric_page import as_html
    from zoo.report.metric_picture import draw

    kind = path.suffix.lower().removeprefix(".")
    data = as_html(embedded, ranked).encode() if kind == "html" else draw(embedded, ranked, kind)
    with write_errors(path):
        write_bytes(path, data)


def _print_json(seed: int, embedded: list[Embedded], ranked: list[Ranked]) -> None:
    from zoo.console import print_json
    from zoo.report.metric_examples import CLASSES, EACH, RELATIVES

    print_json(
        {
            "seed": seed,
            "classes": CLASSES,
            "points_per_class": EACH,
            "relatives": RELATIVES,
            "embeddings": [{"name": e.name, "share": e.share, "metrics": e.metrics} for e in embedded],
            "rankings": [{"name": r.name, "found": r.found, "metrics": r.metrics} for r in ranked],
        }
    )


def _print_tables(embedded: list[Embedded], ranked: list[Ranked]) -> None:
    from zoo.console import print_table
    from zoo.report.metric_examples import CLASSES, EACH, METRICS, RANKED, RELATIVES, percent

    print(f"{CLASSES} classes of {EACH} points in the plane, made for this table (no paper's); %")
    rows = [[each.name, *(percent(each.metrics[name]) for name in METRICS)] for each in embedded]
    print_table(("classes are", *METRICS.values()), rows, numbers=METRICS.values())
    print(f"\na query with {RELATIVES} relatives, by which of its first {RELATIVES} results are such; %")
    rows = [[each.name, *(percent(each.metrics[name]) for name in RANKED)] for each in ranked]
    print_table(("found", *RANKED.values()), rows, numbers=RANKED.values())


COMMAND = Command(
    summary="what each metric sees: three embeddings that R@1, NMI and F1 cannot tell apart, R-precision and MAP@R can",
    configure=_configure,
    run=_run,
    examples="""\
  zoo benchmark metrics                       the tables
  zoo benchmark metrics --out metrics.png     and a picture (or .svg, .pdf, .html)
  zoo benchmark metrics --seed 3 --json

Figure 1 of Reality (Musgrave et al. 2020) shows such embeddings. Its points are not at hand; these are our own, classes
that fill 30, 75 or 94 % of their sector of the plane, and measured as any embedding is (zoo score, zoo evaluate).""",
)
