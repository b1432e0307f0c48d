"""`zoo list`, `info`, `verify`, `baseline`, `ensemble` and `convert`: models by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zoo.cli.options import (
    ADVANCED,
    FILES,
    BatchSize,
    Data,
    Device,
    Json,
    Model,
    ReplaceModel,
    Strict,
    print_outcome,
    strict_status,
)
from zoo.console import count, note, one_line, print_json, print_table
from zoo.errors import command
from zoo.render import Table

if TYPE_CHECKING:
    from zoo.models.card import Card
    from zoo.models.catalogue import ModelInfo
    from zoo.models.results import Check


app = typer.Typer()

# zoo list

FACTS = ("name", "status", "dim", "method", "head", "backbone", "dataset")
COLUMNS = (*FACTS, "size", "paper's R@1", "R@1 (classes)")
NUMBERS = ("dim", "size", "paper's R@1", "R@1 (classes)")


@app.command(
    "list",
    epilog="""\
  zoo list
  zoo list '*dino*'                         models whose names match a pattern
  zoo list --status hub                     strong public backbones that load by name
  zoo list --recipes --dataset omniglot     what zoo train can train
  zoo list --json

head: what makes the embedding: the heads that the method trained; LDA or PCA of the trained trunk's features; or none.
size: megabytes on disk, or millions of parameters (M) if the model is not here yet. paper's R@1: on the model's data
set, or on the one that is named; zoo info NAME has all of them. R@1 (classes): the newest on the test split of the
model's data set, or of the folder or table that it learnt from, and the number of classes. Only scores on the same
images, named below the table, compare.""",
)
def list_models(
    pattern: Annotated[str, Argument(metavar="PATTERN", help="names with wildcards, in quotes")] = "*",
    method: Annotated[str | None, Option(metavar="M", help="only of this method")] = None,
    backbone: Annotated[str | None, Option(metavar="B", help="only of this backbone")] = None,
    dataset: Annotated[str | None, Option(metavar="D", help="only of this data set")] = None,
    status: Annotated[str | None, Option(metavar="S", help="only models shipped, trained, package or hub")] = None,
    recipes: Annotated[bool, Option("--recipes", help="list the recipes, which zoo train trains, instead")] = False,
    as_json: Json = False,
) -> None:
    """list the models: trained here, shipped, or on the Hub"""
    from zoo.errors import UsageError
    from zoo.models.catalogue import damaged_folders, list_recipes
    from zoo.models.catalogue import list_models as list_known

    if recipes and status is not None:
        raise UsageError("a recipe has no status; leave out --status or --recipes.", code="conflicting-options")
    facts = {"method": method, "backbone": backbone, "dataset": dataset}
    models = list_recipes(pattern, **facts) if recipes else list_known(pattern, **facts, status=status)
    if as_json:
        print_json([_row(model) for model in models])
    else:
        _print_models(models, recipes)
    for reason in damaged_folders().values():
        note(f"not listed, because it is damaged: {reason}")


def _print_models(models: Sequence[ModelInfo], are_recipes: bool) -> None:
    if models:
        print_table(Table(COLUMNS, [_cells(model) for model in models], numbers=NUMBERS))
    _print_measured_on(models)
    if not models:
        note("no recipe matches" if are_recipes else "no model matches; what can be trained: zoo list --recipes")
    elif not are_recipes:
        note("what can be trained: zoo list --recipes")


def _row(model: ModelInfo) -> dict[str, Any]:
    row = {fact: getattr(model, fact) for fact in FACTS}
    result = _test_result(model)
    measured = {"published_recall_at_1": _published_recall(model), "recall_at_1": result["metrics"].get("recall_at_1")}
    measured |= {"measured_on": result.get("data"), "classes": result.get("classes")}
    changed = {"changed": model.origin.changed}
    return {**row, "size": model.size, "parameters": model.parameters, **measured, **changed}


def _cells(model: ModelInfo) -> list[str]:
    row = {**_row(model), "status": model.status_text}
    return [*(_cell(row[fact] or None) for fact in FACTS), _size(row), _paper_cell(model), _recall_cell(row)]


def _recall_cell(row: Mapping[str, Any]) -> str:
    """Return R@1 with the number of classes that it was measured on."""
    value = _cell(row["recall_at_1"])
    return f"{value} ({row['classes']})" if row["recall_at_1"] is not None and row["classes"] else value


def _print_measured_on(models: Sequence[ModelInfo]) -> None:
    """Print a line for each data set of the shown scores, with the models that were measured on it."""
    from zoo.models.results import data_title

    names: dict[str, list[str]] = {}
    for model in models:
        if "recall_at_1" in (result := _test_result(model))["metrics"]:
            names.setdefault(data_title(result), []).append(model.name)
    for title, measured in names.items():
        print(f"R@1 on {title}: {', '.join(measured)}")


def _published_recall(model: ModelInfo) -> float | None:
    """Return the first R@1 that a paper prints for the model on its own data set."""
    return model.published_recall.get(model.dataset)


def _paper_cell(model: ModelInfo) -> str:
    """Return R@1 on the model's own data set; else the first that a paper measured, with the name of its data set."""
    if _published_recall(model) is not None or not model.published_recall:
        return _cell(_published_recall(model))
    dataset, value = next(iter(model.published_recall.items()))
    return f"{dataset} {value:.4f}"


def _test_result(model: ModelInfo) -> Mapping[str, Any]:
    """Return the newest measurement on the unseen classes of the data set that the model was trained on.

    "folder" is any folder or table: there the name of the training images decides, where both are recorded.
    """
    from zoo.data.dataset import FOLDER

    learnt_from = model.training_data.get("name") if model.dataset == FOLDER else None
    results = [
        r
        for r in model.own_results
        if (r["dataset"], r["split"]) == (model.dataset, "test")
        and not (model.learnt(r) or r.get("learnt_classes"))
        and (learnt_from is None or not r.get("data") or r["data"]["name"] == learnt_from)
    ]
    return results[-1] if results else {"dataset": None, "metrics": {}}


def _size(row: dict[str, Any]) -> str:
    """Return megabytes on disk, else millions of parameters."""
    if row["size"] is not None:
        return f"{row['size'] / 1e6:.1f} MB"
    return f"{row['parameters'] / 1e6:.1f} M" if row["parameters"] else "-"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


# zoo info


@app.command(
    "info",
    epilog="""\
  zoo info margin-conv4-glyphs
  zoo info diva-r50-cub                     a recipe: what it would train, and what the paper reports
  zoo info ./my-model --json""",
)
def info(name: Model, as_json: Json = False) -> None:
    """show a model's card, files, measured and published scores"""
    from zoo.models.catalogue import info as model_info
    from zoo.models.results import metric_table, origin_text

    model = model_info(name)
    if as_json:
        print_json(model.to_json())
        return
    print_table(Table(("what", "value"), list(_facts(model).items())))
    for result in model.results:
        print(f"\nmeasured on {_subject(result)}\n{origin_text(result)}{_other_model(model, result)}")
        print_table(metric_table(result["metrics"], result.get("intervals", {})))
    if model.published:
        print("\npublished")
        columns = ("data set", "metric", "value", "dim", "of", "source")
        print_table(Table(columns, _published_rows(model), numbers=("value", "dim")))
    for line in _advice(model):
        print(line)


def _facts(model: ModelInfo) -> dict[str, str]:
    from zoo.data.dataset import dataset_title

    facts = {fact: str(getattr(model, fact) or "-") for fact in FACTS}
    facts |= {"status": model.status_text, "dataset": dataset_title(model.dataset)}
    if model.parameters:
        facts["parameters"] = f"{model.parameters / 1e6:.2f} million"
    if model.card is not None:
        files = {"files": ", ".join(_files(model)) or "-"}
        made = _recipe(model) | _training_data(model) | _selection(model) | _whitening(model)
        made["likely results"] = "told without labels" if model.judges_relevance else "told with labels only"
        place = {"folder": str(model.folder), "size": f"{(model.size or 0) / 1e6:.2f} MB"}
        return {**facts, **_card_facts(model.card), **made, **files, **place}
    more = {key: "; ".join(value) if isinstance(value, list) else str(value) for key, value in model.facts.items()}
    return {**facts, **more, "paper's R@1": _papers_recall(model)}


def _recipe(model: ModelInfo) -> dict[str, str]:
    return {"recipe": model.origin.text} if model.origin.recipe else {}


def _training_data(model: ModelInfo) -> dict[str, str]:
    from zoo.data.dataset import DataIdentity

    data = model.training_data
    if not {"name", "sha256", "images", "classes"} <= data.keys():
        return {}
    images = DataIdentity(data["name"], data["sha256"], data["images"], data["classes"])
    return {"trained on": f"{images}, {count(images.images, 'image')} of {count(images.classes, 'class')}"}


def _selection(model: ModelInfo) -> dict[str, str]:
    from zoo.evaluation.selection import read_selection

    selection = read_selection(model.folder) if model.folder else None
    return {"kept": f"{selection.model_text}: {selection.reason}"} if selection else {}


def _whitening(model: ModelInfo) -> dict[str, str]:
    from zoo.evaluation.whitening import read_whitening_comparison

    compared = read_whitening_comparison(model.folder) if model.folder else None
    return {"whitening": compared.text} if compared else {}


def _papers_recall(model: ModelInfo) -> str:
    """Return R@1 on the model's own data set, else on each that a paper has."""
    recall = model.published_recall
    if model.dataset in recall:
        return f"{recall[model.dataset]:.4f}"
    return ", ".join(f"{dataset} {value:.4f}" for dataset, value in recall.items()) or "-"


def _card_facts(card: Card) -> dict[str, str]:
    pixels = card.preprocessing
    sides = "both sides" if pixels.squeeze else "short side"
    size = f"{sides} to {pixels.resize}, centre square of {pixels.crop}"
    return {
        "description": card.description or "-",
        "architecture": card.architecture,
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in card.heads) or "-",
        "input": f"{pixels.mode}, {size}, {pixels.interpolation}",
        **({"text": f"texts of up to {card.text.length} tokens"} if card.text else {}),
        "licence": card.licence_text,
        "sources": ", ".join(card.sources) or "-",
        "fingerprint": card.fingerprint,
    }


def _files(model: ModelInfo) -> Iterator[str]:
    """Yield the files that the card lists, each with its size."""
    for name in model.card.files if model.card else ():
        path = model.folder / name if model.folder else None
        yield f"{name} ({path.stat().st_size / 1e6:.2f} MB)" if path and path.is_file() else f"{name} (missing)"


def _advice(model: ModelInfo) -> list[str]:
    """Return how to get a model that is not here."""
    from zoo.hub.download import repository_id

    if model.folder is not None:
        return []
    if model.status == "package":
        return [f"\nNot used here yet; the first use makes a model folder of these weights: zoo.load({model.name!r})"]
    if model.status == "hub":
        return [f"\nNot used here yet; the first use fetches it from the Hub: zoo.load({model.name!r})"]
    return [
        f"\nNot trained yet. Train it with: zoo train {model.name}",
        f"Should it be published, zoo.load({model.name!r}) fetches it: https://huggingface.co/{repository_id(model.name)}",
    ]


def _published_rows(model: ModelInfo) -> list[list[str]]:
    return [
        [
            *(row["dataset"], row["metric"], f"{row['value']:.4f}", str(row.get("dim", "-"))),
            *(row.get("of", "this model"), "; ".join((row["source"], *row.get("marks", ())))),
        ]
        for row in model.published
    ]


def _subject(result: dict[str, Any]) -> str:
    from zoo.data.dataset import split_title
    from zoo.models.results import data_title

    named = {key: str(result[key] or "-") for key in ("runtime", "precision")}
    part = split_title(result["split"])
    if left_out := result.get("unreadable"):
        part += f", {left_out} unreadable left out"
    return f"{data_title(result)}, {part}, with {named['runtime']} in {named['precision']}"


def _other_model(model: ModelInfo, result: dict[str, Any]) -> str:
    other = "" if result in model.own_results else "; of other weights or preprocessing than this model's"
    return other + "; the images that it was trained on" * model.learnt(result)


# zoo verify

MARKS = {True: "ok", False: "FAILED", None: "not checked"}
UNSUITED = "unsuited"
"""Mark of a check that says something of the network and is not a failure of its folder."""


@app.command(
    "verify",
    epilog="""\
  zoo verify margin-conv4-glyphs        one line per check; the exit status is 1 if any fails
  zoo verify diva-r50-cub --data DIR    measure its scores on CUB200-2011 again
  zoo verify ./my-model --quick --json

A check that cannot be made here (torch or the data are missing) is shown as such and does not fail. Neither does a
network that torch's half precision (fp16, bf16) does not suit, which is marked "unsuited": use it in fp32.""",
)
def verify(
    model: Model,
    data: Data = None,
    quick: Annotated[bool, Option("--quick", help="files and golden images only, no scores")] = False,
    device: Device = None,
    as_json: Json = False,
) -> int:
    """check a model's files and golden embeddings, and measure it again"""
    from training.verify import verify as verify_model

    checks = []
    for check in verify_model(model, data, quick=quick, device=device, progress=True):
        checks.append(check)
        if not as_json:
            print(f"{_mark(check):<12}{one_line(check.name):<40}{one_line(check.detail)}", flush=True)
    if as_json:
        print_json([check.to_json() for check in checks])
    return 1 if any(check.fails for check in checks) else 0


def _mark(check: Check) -> str:
    return UNSUITED if check.ok is False and not check.fails else MARKS[check.ok]


# zoo baseline

Architecture = Annotated[
    str | None,
    Option(
        "--architecture",
        metavar="NAME",
        help="timm's name (default: the one that the weights state)",
        rich_help_panel=FILES,
    ),
]
Mean = Annotated[
    str | None,
    Option(
        "--mean",
        metavar="M,M,M",
        help="mean of the pixels, 0 to 1 (default: the weights', else timm's)",
        rich_help_panel=FILES,
    ),
]
Std = Annotated[
    str | None,
    Option(
        "--std",
        metavar="S,S,S",
        help="standard deviation of the pixels (default: in the same way)",
        rich_help_panel=FILES,
    ),
]
Sha256 = Annotated[
    str | None,
    Option(
        "--sha256",
        metavar="HEX",
        help="the file's hash (default: not checked, unless it is known)",
        rich_help_panel=FILES,
    ),
]


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Return the numbers of an option, separated by commas."""
    from zoo.errors import UsageError

    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f"{option} takes numbers as 0.485,0.456,0.406, not {text!r}.", code="invalid-value") from None


@app.command(
    "baseline",
    epilog="""\
  zoo baseline dinov2-s14 --as dino --size 224 --whiten ~/Pictures --dim 128
  zoo baseline dinov2-s14 --as birds --whiten birds.csv  the images of a table; it needs no labels
  zoo baseline resnet50.a1_in1k --as r50-plain           any timm model of the Hub
  zoo baseline lite0 --as lite-photos                    weights of an installed package; needs no network
  zoo baseline net.pth --architecture resnet50 --as own  a file of yours; --mean and --std if they are not timm's
  zoo baseline net.onnx --mean 0.5 --std 0.5 --as own    an ONNX graph from images to vectors
  zoo baseline clip-b16 --as clip-cub --whiten-on cub --dim 256 --limit 5000
  zoo baseline siglip2-b16 --joint                       images and texts in one space, as siglip2-b16-joint
  zoo evaluate dino --dataset folder --data DIR          as any model: zoo index, zoo export, zoo verify
Images of --whiten that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
def baseline(
    weights: Annotated[
        str,
        Argument(
            metavar="WEIGHTS",
            help="a public backbone (zoo list --status hub), timm's name, a model, a folder, a .safetensors, .pth or "
            ".onnx file, or an installed package (lite0)",
        ),
    ],
    name: Annotated[
        str | None,
        Option("--as", metavar="NAME", help="name in the local zoo (default: WEIGHTS-joint with --joint, else needed)"),
    ] = None,
    architecture: Architecture = None,
    mean: Mean = None,
    std: Std = None,
    sha256: Sha256 = None,
    layout: Annotated[
        str | None,
        Option(
            metavar="L",
            help="nchw or nhwc: order of an ONNX graph's axes (default: by its shape)",
            rich_help_panel=FILES,
        ),
    ] = None,
    whiten: Annotated[
        str | None,
        Option(
            metavar="DIR",
            help="fit PCA whitening on all images in this folder, or of a table (CSV with the column image; if it has "
            "a column split, on those to train on)",
        ),
    ] = None,
    whiten_on: Annotated[
        str | None, Option(metavar="DATASET", help="fit PCA whitening on the training split of this data set instead")
    ] = None,
    data: Data = None,
    dim: Annotated[
        int | None,
        Option(
            metavar="N",
            help="numbers that whitening keeps, the most varied directions first (default: half as many as images, at "
            "most all)",
        ),
    ] = None,
    size: Annotated[int | None, Option(metavar="N", help="pixels of the input (default: the backbone's)")] = None,
    joint: Annotated[
        bool,
        Option(
            "--joint",
            help="put images and texts into one space: CLIP's projection, and the published text tower",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    limit: Annotated[
        int | None,
        Option(
            metavar="N", help="fit on this many of the images, drawn evenly (default: all)", rich_help_panel=ADVANCED
        ),
    ] = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    gem: Annotated[
        float | None,
        Option(
            metavar="P",
            help="pool by the generalised mean with exponent P (default: the backbone's own pooling)",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    squeeze: Annotated[
        bool,
        Option(
            "--squeeze",
            help="show the network whole images, squeezed to a square, instead of their centre",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    shrink: Annotated[
        float,
        Option(
            metavar="X",
            help="add X times the mean variance to every direction's: whitens less, for other subjects",
            rich_help_panel=ADVANCED,
        ),
    ] = 0.1,
    power: Annotated[
        float,
        Option(
            metavar="P",
            help="divide each direction by its variance to the power P: 0 rotates only, .5 whitens",
            rich_help_panel=ADVANCED,
        ),
    ] = 0.5,
    half: Annotated[
        bool,
        Option(
            "--half",
            help="store the weights in fp16, half the size; they are still computed in fp32",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """save weights of any kind as a model of your own, whitened if wanted"""
    from zoo.evaluation.baseline import baseline as save_baseline

    started = time.monotonic()
    saved = save_baseline(
        weights,
        name,
        whiten=whiten,
        whiten_on=whiten_on,
        data=data,
        dim=dim,
        size=size,
        joint=joint,
        limit=limit,
        batch_size=batch_size,
        device=device,
        progress=True,
        architecture=architecture,
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std),
        sha256=sha256,
        layout=layout,
        half=half,
        gem=gem,
        shrink=shrink,
        power=power,
        squeeze=squeeze,
    )
    card = saved.card
    fitted = f", whitened on {saved.fitted:,} images" if saved.fitted else ""
    line = f"{card.name}: {card.dim} numbers of {card.backbone}{fitted}, written to {saved.folder}"
    facts: dict[str, Any] = {"folder": str(saved.folder), "card": card.to_json(), "seconds": time.monotonic() - started}
    facts |= {"whitening": saved.comparison.to_json()} if saved.comparison else {}
    facts |= {"not_compared": saved.not_compared} if saved.not_compared else {}
    print_outcome(as_json, facts, line)
    return strict_status(strict, saved.unreadable)


# zoo ensemble


@app.command(
    "ensemble",
    epilog="""\
  zoo ensemble group-ibn-cub group-d169-cub --as group-2-cub        two models of the local zoo
  zoo ensemble ./first ./second ./third --as three                  or of any folders

The members must preprocess images alike. The ensemble is a model like any other in the local zoo (ZOO_HOME/models):
zoo evaluate, zoo export, zoo index and zoo.load take it by its name. A name that is taken is refused.""",
)
def ensemble(
    members: Annotated[list[str], Argument(metavar="MODEL...", help="names or folders of two or more models")],
    new_name: Annotated[str, Option("--as", metavar="NAME", help="name of the ensemble")],
    replace: ReplaceModel = False,
    as_json: Json = False,
) -> None:
    """join trained models into one that concatenates their embeddings"""
    from training.named import ensemble as join
    from zoo.data import DATASETS
    from zoo.data.dataset import FOLDER
    from zoo.models.card import read_card

    folder = join(members, new_name, replace=replace)
    card = read_card(folder)
    images = () if card.dataset in DATASETS and card.dataset != FOLDER else ("--dataset", FOLDER, "--data", "DIR")
    print_outcome(
        as_json,
        {"name": card.name, "folder": str(folder), "card": card.to_json()},
        f"{card.name}: {count(len(members), 'model')}, {count(card.dim, 'dimension')}.",
        f"Written to {folder}. Measure it with: {command('evaluate', card.name, *images)}",
    )


# zoo convert


@app.command(
    "convert",
    epilog="""\
  zoo convert net.pth --architecture resnet50 --out weights/net     a file of yours
  zoo convert net.safetensors --architecture resnet50 --mean 0.5 --std 0.5 --size 160 --out weights/net
  zoo convert bn_inception-52deb4733.pth --architecture bn_inception --out weights/bn_inception
  zoo convert googlenet-1378be20.pth --architecture googlenet --out weights/googlenet
  zoo convert dml.pth --architecture resnet50 --head last_linear --out weights/dml    with its embedding layer

The folder is a model: zoo index, evaluate, embed, export and finetune --from take it, and so does zoo train with
backbone.pretrained=DIR. A classifier is left out. zoo baseline does the same under a name.""",
)
def convert(
    file: Annotated[
        Path, Argument(metavar="FILE", help="a PyTorch state dict (.pth), a .safetensors file, or a folder of timm's")
    ],
    out: Annotated[Path, Option(metavar="DIR", help="folder to write")],
    architecture: Architecture = None,
    mean: Mean = None,
    std: Std = None,
    size: Annotated[int | None, Option(metavar="N", help="pixels of the input (default: timm's)")] = None,
    sha256: Sha256 = None,
    head: Annotated[
        str | None,
        Option(metavar="LAYER", help="linear layer that makes the embedding (default: none, the pooled features)"),
    ] = None,
    as_json: Json = False,
) -> None:
    """convert a file of weights to a model folder"""
    from zoo.models.pretrained.convert import convert as convert_weights

    statistics = {"mean": _numbers("--mean", mean), "std": _numbers("--std", std)}
    converted = convert_weights(file, out, architecture=architecture, **statistics, size=size, sha256=sha256, head=head)
    card = converted.card
    for text in converted.notes:
        note(text)
    print_outcome(
        as_json,
        {"folder": str(out), "architecture": card.architecture, "card": card.to_json(), "notes": converted.notes},
        f"weights of {card.architecture} written to {out}, a model of {card.dim} numbers",
        f"Index images with: {command('export', out)} && {command('index', out, 'DIR', '--out', 'GALLERY')}",
        f"Or train from them: {command('train', 'NAME', '--set', f'backbone.pretrained={out}')}",
    )
