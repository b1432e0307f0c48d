"""`zoo doctor`: the health of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zoo.cli.options import Json, Latex
from zoo.console import count, print_json, print_table, show, tables_in_latex
from zoo.render import Table

if TYPE_CHECKING:
    from training.health.doctor import RunHealth

app = typer.Typer()


@app.command(
    "doctor",
    epilog="""\
  zoo train margin-conv4-glyphs --as watched && zoo doctor watched
  zoo doctor watched -o health.html     plots and findings as a page
  zoo doctor watched --json

A name means a model that was trained here, else the newest run of that name. The folder of a run, in ZOO_HOME/runs, can
be named while it trains and after it has diverged. While a run trains, each new finding is printed once and kept in
log.jsonl (findings). Exit status: 0 if the run is healthy or too short to judge, 1 with findings, 2 for a name without
a run or a run without indicators.""",
)
def doctor(
    run: Annotated[str, Argument(metavar="MODEL|RUN", help="a model's name, its folder, or the folder of a run")],
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="also write a page with plots and findings: .html")
    ] = None,
    latex: Latex = False,
    as_json: Json = False,
) -> int:
    """say whether a training run is healthy, and which setting to try if not"""
    from training.health.doctor import doctor as examine

    health = examine(run, out)
    if as_json:
        print_json(health.to_json())
    else:
        with tables_in_latex(latex):
            _print(health)
    return 1 if health.findings else 0


def _print(found: RunHealth) -> None:
    from training.health.page import health, rows

    history, findings = found.history, found.findings
    show(f"{found.folder}: {count(len(history.records), 'epoch')}")
    if history.records:
        columns = ("indicator", "start", "last", "by epoch", "meaning")
        print_table(Table(columns, rows(history), numbers=("start", "last")))
    for finding in findings:
        show("", f"{finding.code}, from epoch {finding.epoch}")
        show(f"  what happened: {finding.happened}")
        show(f"  usual cause:   {finding.cause}")
        show(f"  what to try:   {finding.setting}")
    if not findings:
        show("", health(history))
