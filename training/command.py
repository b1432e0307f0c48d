"""`zoo train`."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from zoo.cli.command import Command
from zoo.errors import UsageError

if TYPE_CHECKING:
    from training.recipe import Ensemble, Recipe


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="a recipe's name (all of them: zoo list)")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="change the recipe; repeatable"
    )
    parser.add_argument("--seed", type=int, help="the run's seed (default: the recipe's)")
    parser.add_argument("--as", dest="rename", metavar="NAME", help="the name of the model that is written")
    parser.add_argument(
        "--features", metavar="FILE", help="train heads on what `zoo features` kept of a trunk, which stays as it is"
    )
    parser.add_argument("--from", dest="model", metavar="MODEL", help="that trunk's model (default: as FILE says)")
    parser.add_argument(
        "--data", metavar="DIR", help="where the data set lies (default: ZOO_DATA, else downloaded); see zoo evaluate"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--compile", dest="compiled", action="store_true", help="put the trunk through torch.compile")
    parser.add_argument(
        "--track", action="append", default=[], metavar="NAME", help="tensorboard or wandb, beside the log; repeatable"
    )
    parser.add_argument("--restart", action="store_true", help="forget an interrupted run of the same recipe")
    parser.add_argument("--no-eval", action="store_true", help="do not measure the test split after training")
    parser.add_argument("--show", action="store_true", help="print the resolved recipe as JSON and end")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _run(args: Namespace) -> int:
    from training.resolving import resolve, with_custom_name
    from training.trackers import check_trackers
    from zoo.console import print_json
    from zoo.datasets import check_data

    check_trackers(args.track)
    if args.data is not None:
        check_data(args.data, "folder")  # what is not there at all is told before torch is loaded
    recipe: Recipe | Ensemble = with_custom_name(resolve(args.name, args.settings, args.seed, args.rename), args.name)
    if args.data is not None:
        check_data(args.data, recipe.data.dataset)
    if args.features is not None:
        recipe = _on_features(recipe, args)
    elif args.model is not None:
        raise UsageError("--from names the model of cached features; it goes with --features FILE.")
    if args.show:
        print_json(recipe.to_json())
        return 0
    from training.api import train

    how = {"root": args.data, "device": args.device, "restart": args.restart, "progress": not args.quiet}
    how |= {"compiled": args.compiled, "track": args.track, "origin": args.name, "evaluate": not args.no_eval}
    outcome = train(recipe, **how)
    if int(os.environ.get("RANK", "0")):
        return 0  # of several processes the first one speaks
    if args.json:
        print_json(outcome.to_json())
    else:
        print(outcome.summary())
    return 0


def _on_features(recipe: Recipe | Ensemble, args: Namespace) -> Recipe:
    from training.frozen.recipe import on_features
    from zoo.cards import read_card
    from zoo.features import read_features
    from zoo.loading import find

    features = read_features(args.features)
    model = args.model or features.about.model
    return on_features(recipe, features, read_card(find(model)), model, args.settings, args.rename)


COMMAND = Command(
    summary="train a model by its recipe into the local zoo",
    configure=_configure,
    run=_run,
    examples="""\
  zoo train margin-conv4-glyphs                       needs no data and no network
  zoo train margin-conv4-omniglot --data DIR          handwriting, from the two zip files in DIR
  zoo train margin-conv4-glyphs --seed 1 --as mine    another seed, another name
  zoo train margin-conv4-glyphs --set optimizer.lr=1e-3 --set schedule.epochs=4
  zoo train margin-conv4-cifar100 --set data.dataset=folder --data birds.csv --as birds    your own, in two splits
  zoo train margin-conv4-glyphs --show                what the recipe says
  zoo train diva-conv4-cifar100 --features f.safetensors --as mine    heads alone, on kept features (zoo features)
  torchrun --nproc-per-node 2 -m zoo.cli.main train margin-conv4-glyphs    two processes share every batch

An interrupted run goes on where its last checkpoint was when the same command is given again. A model of the same
name in the local zoo (ZOO_HOME/models) is replaced when training has ended well.""",
    resumes=lambda args: not args.restart,  # which forgets what is kept
)
