"""Options that several commands share, each defined once, and helpers that act on them.

A command names them as the types of its parameters: `def info(name: Model, as_json: Json = False) -> None`.
Heavy modules are imported inside the helpers.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zoo.console import note, note_left_out, print_json, printable, show
from zoo.data import DATASETS
from zoo.errors import UsageError

if TYPE_CHECKING:
    from serving.gallery.filters import Filter
    from zoo.data.dataset import Dataset as DataSet
    from zoo.errors import ImageError
    from zoo.models.load import Embedder


ADVANCED, CLUSTER, LIMITS, FILES = "Advanced", "Cluster", "Limits", "Files of weights"
"""Headings of the help below the common options."""
WHERE_EXAMPLE = '{"colour": "red", "year": {"gte": 1900, "lt": 1950}}'

Model = Annotated[str, Argument(metavar="MODEL", help="a model's name, or the path of a model folder")]
GalleryAddress = Annotated[
    str, Argument(metavar="GALLERY", help="gallery folder, or its address in Milvus: milvus://host:port/name")
]
GalleryFolder = Annotated[str, Argument(metavar="GALLERY", help="gallery folder")]
MovedModel = Annotated[
    str | None, Option("--model", metavar="MODEL", help="name or folder of the gallery's model, if it has moved")
]

Json = Annotated[bool, Option("--json", help="print the outcome as JSON")]
Latex = Annotated[bool, Option("--latex", help="print the tables in LaTeX (booktabs)")]
Csv = Annotated[bool, Option("--csv", help="print the tables as CSV")]
Margins = Annotated[
    list[str] | None,
    Option(
        "--margin",
        metavar="METRIC=MARGIN",
        help="the difference below which two are equivalent, as map_at_r=.005, stated before the results; repeatable "
        "(default: nothing is called equivalent)",
    ),
]
Quiet = Annotated[bool, Option("--quiet", help="show no progress")]
Yes = Annotated[bool, Option("--yes", help="do not ask first")]
FollowLinks = Annotated[
    bool,
    Option(
        "--follow-links",
        help="follow links that lead out of the folder, and read the images there",
        rich_help_panel=ADVANCED,
    ),
]
Exclude = Annotated[
    list[str] | None,
    Option(
        "--exclude",
        metavar="PATTERN",
        help="leave out files and folders of this name, as '*_edited' or raw/*.jpg; repeatable. Thumbnails and bins of "
        "NAS boxes and systems (@eaDir, #recycle, lost+found, ...) and hidden files are left out anyway, unless "
        "'!@eaDir' takes them back",
    ),
]
Strict = Annotated[bool, Option("--strict", help="exit with 1 if an image or a folder could not be read")]
ReplaceModel = Annotated[bool, Option("--replace", help="replace a model of the same name")]

Data = Annotated[
    str | None,
    Option(
        "--data",
        metavar="DIR",
        help="where the data set's files are (default: in ZOO_DATA, else downloaded); of the data set folder, your own "
        "images: a folder, or a table (CSV: image,label)",
    ),
]
Dataset = Annotated[
    str | None,
    Option(
        "--dataset",
        metavar="NAME",
        help=f"data set: {', '.join(DATASETS)} (default: the one that the model was trained for)",
    ),
]
SPLITS = "train or test (classes never trained on); of a folder also all"
Split = Annotated[str, Option("--split", metavar="SPLIT", help=SPLITS)]
OptionalSplit = Annotated[str | None, Option("--split", metavar="SPLIT", help=f"{SPLITS} (default: test)")]

Device = Annotated[
    str | None, Option("--device", metavar="D", help="cpu, cuda or cuda:N (default: cuda if there is one)")
]
RUNTIMES = "torch, onnx, or auto: torch on a GPU, elsewhere onnx if there is a graph or one is worth making"
PRECISIONS = "fp32, bf16, fp16 or int8, as the runtime has them"
Runtime = Annotated[str, Option("--runtime", metavar="R", help=RUNTIMES)]
OptionalRuntime = Annotated[str | None, Option("--runtime", metavar="R", help=f"{RUNTIMES} (default: auto)")]
Precision = Annotated[str, Option("--precision", metavar="P", help=PRECISIONS)]
OptionalPrecision = Annotated[str | None, Option("--precision", metavar="P", help=f"{PRECISIONS} (default: fp32)")]
Dim = Annotated[
    int | None,
    Option(
        "--dim",
        metavar="N",
        help="numbers of the embedding, the first and most important ones (default: all)",
        rich_help_panel=ADVANCED,
    ),
]
BatchSize = Annotated[int, Option("--batch-size", metavar="N", help="images per step")]
Seed = Annotated[int, Option("--seed", metavar="N", help="seed of all that is random")]

Settings = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="change the recipe; repeatable")]
TrustCode = Annotated[
    bool, Option("--trust-code", help="import the classes that a folder from elsewhere names, which runs their code")
]
AsPublished = Annotated[
    bool,
    Option("--as-published", help="take the settings of the authors' published code where it departs from the paper"),
]
NewName = Annotated[
    str | None,
    Option(
        "--as", metavar="NAME", help="name of the new model (default: the recipe's, or made from the source model's)"
    ),
]
NamedDataset = Annotated[
    str | None, Option("--dataset", metavar="NAME", help="a data set by name, instead of a folder or table")
]
AugmentedViews = Annotated[int, Option("--views", metavar="N", help="augmented views of each image")]
TestShare = Annotated[float, Option("--test-share", metavar="S", help="share of the classes to measure on")]

Labels = Annotated[list[str] | None, Option("--label", metavar="LABEL", help="only items of this label; repeatable")]
Where = Annotated[
    str | None,
    Option(
        "--where",
        metavar="JSON",
        help=f"only items with this metadata, as {WHERE_EXAMPLE}: a value, one of a list, or a range",
    ),
]


def table_form(latex: bool, as_csv: bool) -> str:
    """Return the form of tables that --latex and --csv ask for, as `print_table` takes it.

    Raises:
        UsageError: If both are given.
    """
    if latex and as_csv:
        raise UsageError("--latex and --csv exclude each other.", code="conflicting-options")
    return "latex" if latex else "csv" if as_csv else "text"


def print_outcome(as_json: bool, facts: Any, *lines: str) -> None:
    """Print the outcome of a command: its facts as JSON, or the lines for people."""
    if as_json:
        print_json(facts)
    else:
        show(*lines)


def words(values: Iterable[str] | None) -> list[str]:
    """Return the words of an option that is repeatable and takes lists with commas: a,b c -> a b c."""
    return [word for value in values or () for word in value.split(",")]


def numbers(values: Iterable[str] | None) -> list[int]:
    """Return the whole numbers of an option that is repeatable and takes lists with commas.

    Raises:
        typer.BadParameter: If a part is not a whole number.
    """
    try:
        return [int(word) for word in words(values)]
    except ValueError:
        text = ",".join(values or ())
        raise typer.BadParameter(f"expected whole numbers, as 10 or 1,10,100, not {text!r}") from None


def json_object(text: str, option: str, example: str) -> dict[str, Any]:
    """Return the JSON object that an option's text holds.

    Raises:
        UsageError: If the text is not a JSON object; the message names the option and shows the example.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{option} is not a JSON object, as {example}: {error}.", code="invalid-value") from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"{option} holds a number with too many digits, or is nested too deep.", code="invalid-value"
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"{option} is a JSON object, as {example}.", code="invalid-value")
    return value


def metadata_filter(where: str | None) -> dict[str, Any]:
    """Return the object of --where; its contents are not checked.

    Raises:
        UsageError: If it is not a JSON object.
    """
    return {} if where is None else json_object(where, "--where", WHERE_EXAMPLE)


def item_filter(labels: list[str] | None, where: str | None) -> Filter:
    """Return the filter of --label and --where.

    Raises:
        UsageError: If --where is not a filter.
    """
    from serving.gallery.filters import Filter

    return Filter(tuple(labels or ()), metadata_filter(where))


def confirm(question: str) -> bool:
    """Ask on stderr and return whether the person at the terminal answers yes."""
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def repeated(context: typer.Context, option: str, instead_of: str) -> str:
    """Return the command that was given, with its arguments and options, for a shell.

    Args:
        context: The command's.
        option: A flag to add.
        instead_of: The parameter to leave out.
    """
    words = context.command_path.split()
    for parameter in context.command.params:
        name = parameter.name or ""
        source, value = context.get_parameter_source(name), context.params.get(name)
        if name == instead_of or source is None or source.name != "COMMANDLINE":
            continue
        values = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            words += map(str, values)
        elif value is True:
            words.append(parameter.opts[0])
        else:
            words += [word for one in values for word in (parameter.opts[0], str(one))]
    return shlex.join([*words, option])


def strict_status(strict: bool, unreadable: object) -> int:
    """Return the exit status of finished work.

    Args:
        strict: Whether --strict was given.
        unreadable: The images that could not be read, or their number.
    """
    return 1 if strict and unreadable else 0


WHITENED = """\
{name} was whitened on images. If these are among them, the scores flatter it; zoo info {name} says what is known of \
them."""
SEEN = """\
{name} was trained on a folder of images. If it was this one, it has seen these classes, and the scores say little \
about new classes. Hold classes out: zoo train and zoo evaluate use the subfolders train and test of a folder; zoo \
finetune splits any other folder."""


def open_model_and_images(
    model: str,
    dataset: str | None,
    split: str,
    data: str | None,
    runtime: str,
    precision: str = "fp32",
    device: str | None = None,
) -> tuple[Embedder, DataSet]:
    """Return a loaded model and the images to measure it on; print what a reader of its scores must know on stderr.

    The images are found first: their number decides whether the model is worth a graph.

    Args:
        model: The model; of a folder it was finetuned on, the classes that its recipe.json holds out are taken.
        dataset: Name of the data set; None for the model's own.
        split: Part of the data set.
        data: Folder of the data set; None for ZOO_DATA.
        runtime: As in `zoo.load`.
        precision: As in `zoo.load`.
        device: As in `zoo.load`.
    """
    from zoo.data import check_dataset
    from zoo.data.dataset import FOLDER, WHOLE
    from zoo.data.table import is_own_table
    from zoo.evaluation.split import dataset_to_measure, find_split, read_whitened_classes
    from zoo.models.baselines import WHITENING_HEAD
    from zoo.models.card import read_card, read_training_data
    from zoo.models.load import load
    from zoo.models.names import find_model

    folder = find_model(model)
    card = read_card(folder)
    if dataset is None and is_own_table(data):
        dataset = FOLDER
    name = dataset or dataset_to_measure(folder, card, data)
    check_dataset(name, split, data)
    selection = find_split(folder, card, name, split, data)
    for text in selection.notes:
        note(text)
    recorded = bool(read_training_data(folder))  # then the notes say which classes it has seen
    if selection.dataset.split == WHOLE and card.dataset == selection.dataset.name and not recorded:
        note(SEEN.format(name=card.name))
    whitened = selection.dataset.name == FOLDER and any(head.name == WHITENING_HEAD for head in card.heads)
    if whitened and not read_whitened_classes(folder).digests:  # then the notes say which classes it was fitted on
        note(WHITENED.format(name=card.name))
    images = selection.dataset
    return load(folder, runtime, precision, device, images=len(images)), images


@contextmanager
def leaving_out() -> Iterator[dict[str, ImageError]]:
    """Give a dictionary for the images that cannot be read, and print it on stderr at the end, also after an error."""
    unreadable: dict[str, ImageError] = {}
    try:
        yield unreadable
    finally:
        note_left_out(unreadable.values())


def make_graph(model: str, precision: str) -> None:
    """Check that a model has an ONNX variant; export a missing fp32 one, in a process that loads torch.

    No service can load a model without it.

    Raises:
        ModelNotFoundError: If there is no such model.
        VariantNotFoundError: If the model lacks the variant.
        UsageError: If the precision does not exist.
    """
    from zoo.errors import VariantNotFoundError
    from zoo.models.card import read_card
    from zoo.models.names import find_model
    from zoo.models.onnx_runtime import graph_file

    folder = find_model(model)
    try:
        graph_file(folder, read_card(folder), precision)
    except VariantNotFoundError:
        if precision != "fp32" or not all(map(find_spec, ("torch", "onnx", "onnxscript"))):
            raise
        note(f"{folder.name} has no ONNX graph yet; making it, once.")
        export = subprocess.run([sys.executable, "-m", "zoo.cli.main", "export", str(folder)], stdout=sys.stderr)
        if export.returncode:
            raise
