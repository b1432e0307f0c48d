"""`zoo ensemble`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("members", nargs="+", metavar="model", help="names or folders of two or more models")
    parser.add_argument("--as", dest="name", metavar="NAME", required=True, help="the name of the ensemble")
    parser.add_argument("--json", action="store_true", help="print the ensemble's folder and card as JSON")


def _run(args: Namespace) -> int:
    from zoo import paths
    from zoo.cards import NAME
    from zoo.console import print_json
    from zoo.errors import UsageError
    from zoo.registry import find

    if not NAME.fullmatch(args.name):
        raise UsageError(f"--as {args.name}: a name holds lower-case letters, digits, '.', '_' and '-' only.")
    folder, members = paths.local_models() / args.name, [find(member) for member in args.members]
    from training.ensembles import concatenate  # torch, not before the members were found

    card = concatenate(members, folder, args.name)
    if args.json:
        print_json({"name": card.name, "folder": str(folder), "card": card.to_json()})
    else:
        print(
            f"{card.name}: {len(args.members)} models, {card.dim} dimensions.\n"
            f"Written to {folder}. Measure it with: zoo evaluate {card.name}"
        )
    return 0


COMMAND = Command(
    summary="join trained models into one, whose embedding is theirs, concatenated",
    configure=_configure,
    run=_run,
    examples="""\
  zoo ensemble group-ibn-cub group-d169-cub --as group-2-cub        two models of the local zoo
  zoo ensemble ./first ./second ./third --as three                  or of any folders

The members must preprocess images alike. The ensemble is a model like any other in the local zoo (ZOO_HOME/models),
where one of the same name is replaced: zoo evaluate, zoo export, zoo index and zoo.load take it by its name.""",
)
