"""`zoo push`: models to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zoo.cli.options import Json, Model
from zoo.console import one_line, print_json, print_table
from zoo.render import Table

if TYPE_CHECKING:
    from zoo.hub.push import Publication

app = typer.Typer()


@app.command(
    "push",
    epilog="""\
  zoo push margin-conv4-glyphs my-org/margin-conv4-glyphs --dry-run     what would be sent, and the README
  zoo push ./my-model my-org/my-model --private                         logged in before, with: hf auth login
  zoo push ./my-model my-org/my-model --branch v2 --message "longer training"
  zoo push ./my-model other-org/their-model --pull-request""",
)
def push(
    model: Model,
    repository: Annotated[
        str, Argument(metavar="REPOSITORY", help="org/name on the Hub; a bare name goes under ZOO_HUB_ORG")
    ],
    private: Annotated[bool | None, Option("--private", help="make a new repository private")] = None,
    branch: Annotated[
        str | None, Option("--branch", "--revision", metavar="NAME", help="branch to write; made if it does not exist")
    ] = None,
    pull_request: Annotated[
        bool, Option("--pull-request", help="propose the model to a repository that exists")
    ] = False,
    licence: Annotated[
        str | None, Option(metavar="ID", help="instead of the card's, as apache-2.0 or cc-by-nc-4.0")
    ] = None,
    message: Annotated[
        str | None, Option(metavar="TEXT", help="message of the commit (default: the model's name)")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="check, print what would be sent, and send nothing")] = False,
    out: Annotated[Path | None, Option(metavar="DIR", help="only write the files to DIR; send nothing")] = None,
    force: Annotated[bool, Option("--force", help="also push ONNX graphs below the floor of zoo export")] = False,
    as_json: Json = False,
) -> None:
    """check a model and push it to the Hugging Face Hub"""
    from zoo.hub.push import push as push_model

    dry = dry_run or out is not None
    publication = push_model(
        model,
        repository,
        private=private,
        branch=branch,
        create_pr=pull_request,
        licence=licence,
        message=message,
        dry_run=dry,
        force=force,
    )
    if out is not None:
        publication.write(out)
    if as_json:
        print_json({**publication.to_json(), **({"readme": publication.readme} if dry else {})})
    else:
        _print_publication(publication, dry)


def _print_publication(publication: Publication, dry: bool) -> None:
    sizes = [(name, str(size)) for name, size in publication.sizes.items()]
    print_table(Table(("file", "bytes"), sizes, numbers=("bytes",)))
    for name in publication.left_out:
        print(f"not sent: {one_line(name)}")
    for remark in publication.remarks:
        print(f"note: {remark}")
    where = f"{publication.repository} ({publication.revision})"
    if dry:
        print(f"\n{publication.readme}\nnothing was sent to {where}")
    else:
        print(f"sent to {where}: {publication.pull_request or publication.url}")
