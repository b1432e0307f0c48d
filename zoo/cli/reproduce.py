"""`zoo reproduce`: train a model again by its recipe, and compare the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from zoo.cli.options import Data, Device, Json, Latex, Model, Quiet, Settings, TrustCode
from zoo.console import interval_text, print_json, print_table, show, tables_in_latex
from zoo.render import Table

if TYPE_CHECKING:
    from training.reproduce import Reproduction

app = typer.Typer()


@app.command(
    "reproduce",
    epilog="""\
  zoo reproduce margin-conv4-glyphs                   about a minute on two cores; needs no data and no network
  zoo reproduce margin-conv4-glyphs --seed 1 --as second-seed
  zoo reproduce margin-lite0-cub2010-lda --data DIR   photographs: about 20 minutes
  zoo reproduce org/model --data DIR                  a model on the Hub, by the recipe in its folder

The new model is written to ZOO_HOME/models as MODEL-reproduced; nothing else is changed. The exit status is 0 if R@1
and MAP@R on the test split lie within the recorded 95 % intervals over classes, else 1. It is trained in the recorded
precision. Other processors and versions round differently, so equal weights are not expected.""",
)
def reproduce(
    model: Model,
    data: Data = None,
    seed: Annotated[
        int | None, Option("--seed", metavar="N", help="seed of the run (default: the recorded one)")
    ] = None,
    new_name: Annotated[
        str | None, Option("--as", metavar="NAME", help="name of the new model (default: MODEL-reproduced)")
    ] = None,
    settings: Settings = None,
    device: Device = None,
    restart: Annotated[bool, Option("--restart", help="forget an interrupted reproduction")] = False,
    trust_code: TrustCode = False,
    latex: Latex = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """train a model again, and compare the scores"""
    from training.reproduce import reproduce as run

    outcome = run(
        model,
        data,
        settings=settings or (),
        seed=seed,
        name=new_name,
        device=device,
        restart=restart,
        trust_code=trust_code,
        progress=not quiet,
    )
    if as_json:
        print_json(outcome.to_json())
    else:
        with tables_in_latex(latex):
            _print(outcome)
    return 0 if outcome.within else 1


def _print(outcome: Reproduction) -> None:
    rows = [
        [
            row.metric,
            f"{row.recorded:.4f}",
            interval_text(row.interval),
            f"{row.reproduced:.4f}",
            "within" if row.within else "OUTSIDE",
        ]
        for row in outcome.metrics
    ]
    print_table(Table(("metric", "recorded", "95 % over classes", "reproduced", ""), rows, ("recorded", "reproduced")))
    for name, facts, precision in zip(
        ("recorded:  ", "reproduced:"), (outcome.made, outcome.remade), outcome.precisions, strict=True
    ):
        show(f"{name} {_facts(facts)}; {precision or 'precision not recorded'}")
    if outcome.changes:
        show(f"not {outcome.model} again, but another recipe ({', '.join(outcome.changes)}): {outcome.folder}")
    else:
        show(f"{outcome.model} is {'reproduced' if outcome.within else 'NOT reproduced'}: {outcome.folder}")


def _facts(made: dict[str, Any] | Any) -> str:
    seconds = made.get("seconds")
    parts = [
        made.get("command") or "command not recorded",
        f"commit {str(made.get('commit'))[:12]}" if made.get("commit") else "commit not recorded",
        made.get("processor") or "processor not recorded",
        f"{seconds:.0f} s" if isinstance(seconds, int | float) else "time not recorded",
    ]
    return "; ".join(parts)
