"""`zoo train`, on images or on features that `zoo features` keeps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import (
    AsPublished,
    AugmentedViews,
    BatchSize,
    Data,
    Device,
    Json,
    Model,
    NamedDataset,
    NewName,
    Quiet,
    ReplaceModel,
    Seed,
    Settings,
    Split,
    Strict,
    leaving_out,
    print_outcome,
    strict_status,
)
from zoo.console import count, note, print_json, print_table
from zoo.errors import command
from zoo.render import Table

if TYPE_CHECKING:
    from training.recipe import EnsembleRecipe, Recipe

app = typer.Typer()


@app.command(
    "train",
    epilog="""\
  zoo train margin-conv4-glyphs                       needs no data and no network
  zoo train margin-conv4-omniglot --data DIR          handwriting, from the two zip files in DIR
  zoo train margin-conv4-glyphs --seed 1 --as second  another seed, another name
  zoo train margin-conv4-glyphs --seeds 3             three seeds, as three models, and their mean
  zoo train margin-conv4-glyphs --set optimizer.lr=1e-3 --set schedule.epochs=4 --as short
  zoo train margin-conv4-cifar100 --dataset folder --data birds.csv --as birds    your own images, in two splits
  zoo train margin-conv4-glyphs --show                print the recipe
  zoo train diva-r50-cub --show --as-published        print where the authors' code departs from it, and why
  zoo train diva-conv4-cifar100 --features f/ --as heads   heads only, on kept features (zoo features)
  torchrun --nproc-per-node 2 -m zoo.cli.main train margin-conv4-glyphs    two processes share every batch

After an interruption the same command continues from the last checkpoint. A finished model of the local zoo
(ZOO_HOME/models) keeps its name: give the new one another (--as), or replace it when training has ended (--replace).
At the end the test split is measured: the scores are printed and written to results.json.
Too few classes of your own for the recipe's batches or validation: both are made smaller, and the command says so.""",
)
def train(
    name: Annotated[str, Argument(metavar="NAME", help="a recipe's name (all of them: zoo list --recipes)")],
    settings: Settings = None,
    as_published: AsPublished = False,
    seed: Annotated[int | None, Option("--seed", metavar="N", help="seed of the run (default: the recipe's)")] = None,
    seeds: Annotated[
        int | None,
        Option(
            "--seeds", metavar="N", help="train N models, of this and the next seeds; print their mean (default: one)"
        ),
    ] = None,
    new_name: NewName = None,
    features: Annotated[
        str | None,
        Option(
            metavar="DIR", help="train only the heads, on a trunk's features that `zoo features` wrote to this folder"
        ),
    ] = None,
    model: Annotated[
        str | None, Option("--model", metavar="MODEL", help="name or folder of that trunk's model, if it has moved")
    ] = None,
    dataset: Annotated[
        str | None,
        Option("--dataset", metavar="NAME", help="data set (default: the recipe's); folder: your own"),
    ] = None,
    data: Data = None,
    replace: ReplaceModel = False,
    device: Device = None,
    compiled: Annotated[bool, Option("--compile", help="compile the trunk with torch.compile")] = False,
    track: Annotated[
        list[str] | None, Option(metavar="NAME", help="also log to tensorboard, trackio or wandb; repeatable")
    ] = None,
    restart: Annotated[bool, Option("--restart", help="forget an interrupted run of the same recipe")] = False,
    no_eval: Annotated[bool, Option("--no-eval", help="do not measure the test split after training")] = False,
    show: Annotated[bool, Option("--show", help="print the resolved recipe as JSON and end")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """train a model by its recipe into the local zoo"""
    from training.named import resolve_run, train_seeds
    from training.named import train as train_model
    from zoo.cli.benchmark import models

    changes = [*(settings or []), *([f"data.dataset={dataset}"] if dataset else [])]
    what: dict[str, Any] = {
        "data": data,
        "settings": changes,
        "seed": seed,
        "name": new_name,
        "as_published": as_published,
        "features": features,
        "model": model,
    }
    if show:
        _show_recipe(resolve_run(name, **what), name, changes, as_published, as_json)
        return
    what |= {
        "replace": replace,
        "device": device,
        "compiled": compiled,
        "track": track or (),
        "restart": restart,
        "evaluate": not no_eval,
        "progress": not quiet,
    }
    if seeds is not None:
        names = train_seeds(name, seeds, **what)
        models([names[0]], as_json=as_json)
        return
    outcome = train_model(name, **what)
    if int(os.environ.get("RANK", "0")):
        return  # of several processes only the first one prints
    print_outcome(as_json, outcome.to_json(), *outcome.summary(data).splitlines())


def _show_recipe(
    recipe: Recipe | EnsembleRecipe, name: str, settings: list[str], as_published: bool, as_json: bool
) -> None:
    """Print the recipe as JSON; as published, the differences from the paper's recipe, and with --json both."""
    from training.forecast import forecast

    if not as_published:
        print_json(recipe.to_json())
        for line in forecast(recipe, name):
            note(line)
        return
    from training.recipes.published_code import published_switch
    from zoo.models.card import setting_text

    switch = published_switch(name, settings)
    if as_json:
        print_json({"recipe": recipe.to_json(), "published_code": switch.to_json()})
        return
    print(switch.summary)
    if switch.differences:
        rows = [
            [each.key, setting_text(each.paper), setting_text(each.code), each.reason] for each in switch.differences
        ]
        print_table(Table(("setting", "paper", "code", "reason"), rows))
    if switch.unswitched:
        print("Departures of the code that no setting copies:")
        print_table(Table(("not switched", "reason"), [[each.subject, each.reason] for each in switch.unswitched]))


# zoo features

HEADS = "margin-conv4-cifar100"
"""The recipe that is proposed for the features of a model that no recipe is named after."""


@app.command(
    "features",
    epilog="""\
  zoo features softmax-conv4-cifar100 --dataset cifar100 --data DIR -o f/
  zoo features margin-conv4-glyphs pictures/ -o f/ --views 16 --dtype float32
  zoo train diva-conv4-cifar100 --features f/ --as heads       train a recipe's heads on them

The folder holds the trunk's pooled features (before any heads) of each image and of N random views of it, made by the
augmentation of the recipe that made the model, else by random resized crops and mirror images. It belongs to that one
model: training with another, or with changed weights, is refused. Images of a folder that cannot be read are left out
and listed: the exit status is 0, with --strict 1.""",
)
def features(
    model: Model,
    out: Annotated[Path, Option("-o", "--out", metavar="OUT", help="the folder to write")],
    folder: Annotated[str | None, Argument(metavar="DIR", help="a folder of images, one subfolder per class")] = None,
    dataset: NamedDataset = None,
    data: Data = None,
    split: Split = "train",
    views: AugmentedViews = 8,
    recipe: Annotated[
        str | None,
        Option(metavar="NAME", help="the recipe whose augmentation makes the views (default: the model's own recipe)"),
    ] = None,
    dtype: Annotated[Literal["float16", "float32"], Option(help="type of the numbers")] = "float16",
    seed: Seed = 0,
    device: Device = None,
    batch_size: BatchSize = 64,
    replace: Annotated[bool, Option("--replace", help="replace features that OUT holds")] = False,
    strict: Strict = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """keep the features of a model's trunk, to train heads in minutes"""
    from training.cached.features import features as keep
    from zoo.models import recipes
    from zoo.models.card import read_card
    from zoo.models.names import find_model

    started = time.monotonic()
    with leaving_out() as unreadable:
        kept = keep(
            model,
            folder,
            out=out,
            dataset=dataset,
            data=data,
            split=split,
            views=views,
            recipe=recipe,
            dtype=dtype,
            seed=seed,
            device=device,
            batch_size=batch_size,
            replace=replace,
            unreadable=unreadable,
            progress=not quiet,
        )
    size = sum(file.stat().st_size for file in kept.path.iterdir())
    name = read_card(find_model(model)).name
    heads = name if name in recipes() else HEADS
    print_outcome(
        as_json,
        {
            "folder": str(out),
            "images": len(kept),
            "views": len(kept.views),
            "bytes": size,
            "seconds": time.monotonic() - started,
            "unreadable": list(unreadable),
        },
        f"{count(len(kept), 'image')} of {count(len(kept.classes), 'class')}, {count(len(kept.views), 'view')} "
        f"of each: {out} ({size / 2**20:,.0f} MiB)",
        f"Train on them with: {command('train', heads, '--features', out)}",
    )
    return strict_status(strict, unreadable)
