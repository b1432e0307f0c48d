"""`zoo benchmark list`, `compare`, `models`, `report` and `served`: published and own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import (
    BatchSize,
    Csv,
    Data,
    Dataset,
    Device,
    GalleryAddress,
    Json,
    Latex,
    Margins,
    Model,
    MovedModel,
    Precision,
    Runtime,
    Seed,
    Split,
    Strict,
    leaving_out,
    open_model_and_images,
    strict_status,
    table_form,
)
from zoo.console import (
    count,
    interval_text,
    note,
    note_left_out,
    print_json,
    print_table,
    score_text,
    write_errors,
    write_text,
)
from zoo.errors import check_at_least, command
from zoo.render import Table

if TYPE_CHECKING:
    from serving.gallery import VectorGallery
    from training.studies.compare_own import OwnScore
    from training.studies.study import Study
    from zoo.data.dataset import Dataset as DataSet
    from zoo.models.published import AbsentTable, PublishedTable
    from zoo.report.html import Section


app = typer.Typer()

Format = Literal["table", "json", "csv", "latex", "html"]
Paper = Annotated[str | None, Option("--paper", metavar="PAPER", help="only those of this paper, by its short name")]
ScoresOn = Annotated[str | None, Option("--dataset", metavar="D", help="only those on this data set")]
Projection = Annotated[str, Option("--map", metavar="M", help="pca or tsne (needs scikit-learn)")]

# zoo benchmark list

STUDY_COLUMNS = ("study", "title", "source", "arms", "claims", "data sets")
TABLE_COLUMNS = ("table", "paper", "printed in", "title", "data sets", "metrics", "scores", "published as")


@app.command(
    "list",
    epilog="""\
  zoo benchmark list
  zoo benchmark list --paper Revisiting
  zoo benchmark list --dataset cub --json
  zoo benchmark list --absent""",
)
def list_tables(
    paper: Paper = None,
    dataset: ScoresOn = None,
    without: Annotated[
        bool, Option("--absent", help="list instead the published results that are missing here, and why")
    ] = False,
    as_json: Json = False,
) -> None:
    """list the published tables, and the studies that can be run"""
    from training.studies.papers import STUDIES
    from zoo.models.published import absent_tables, select_tables

    if without:
        _print_absent([row for row in absent_tables() if paper in (None, row.paper.short)], as_json)
        return
    tables = select_tables(paper, dataset)
    own = [study for name, study in STUDIES.items() if paper is None or name.partition("/")[0] == paper.lower()]
    studies = [study for study in own if dataset is None or not study.datasets or dataset in study.datasets]
    if as_json:
        print_json({"tables": [asdict(table) for table in tables], "studies": [asdict(study) for study in studies]})
        return
    if tables:
        print_table(Table(TABLE_COLUMNS, [_table_cells(table) for table in tables], numbers=("scores",)))
    if studies:
        print_table(Table(STUDY_COLUMNS, [_study_cells(study) for study in studies], numbers=("arms", "claims")))
    if not tables and not studies:
        note("no published table and no study matches; without filters all are listed: zoo benchmark list")


def _print_absent(rows: Sequence[AbsentTable], as_json: bool) -> None:
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_table(Table(("paper", "what", "why"), [[row.paper.short, row.what, row.why] for row in rows]))


def _study_cells(study: Study) -> list[str]:
    counts = [str(len(study.arms)), str(len(study.claims))]
    return [study.name, study.title, study.source, *counts, ", ".join(study.datasets) or "any"]


def _table_cells(table: PublishedTable) -> list[str]:
    lists = [", ".join(table.datasets), ", ".join(table.metrics), str(len(table.scores))]
    return [table.name, table.paper.short, table.place, table.title, *lists, table.protocol]


# zoo benchmark compare


@app.command(
    "compare",
    epilog="""\
  zoo benchmark compare revisiting-2 --dataset cub
  zoo benchmark compare --paper DiVA --format json
  zoo benchmark compare --dataset cars --format html --out cars.html
  zoo benchmark compare --dataset cub --studies ./revisiting-table-2-cub
  zoo benchmark compare revisiting-2 --format html --out ours.html --show margin-r50-cub --map tsne

Ours are the scores in results.json of the models in the local zoo and of the shipped ones (zoo evaluate MODEL --save),
and of the finished runs of studies (zoo benchmark run); if a recipe has both, those of more seeds.
A recipe's seeds are the model of its name and all models whose recipe.json differs from that in name and seed alone:
  zoo train margin-r50-cub; zoo train margin-r50-cub --seed 1 --as margin-r50-cub-seed1; ...
With several seeds: mean, standard deviation and 95 % interval of the mean over seeds and classes; with one: its
interval over classes, which leaves out the seed.""",
)
def compare(
    table: Annotated[
        str | None, Argument(metavar="TABLE", help="name of a published table (default: all; zoo benchmark list)")
    ] = None,
    dataset: ScoresOn = None,
    paper: Paper = None,
    output: Annotated[Format, Option("--format", help="format of the output")] = "table",
    out: Annotated[Path | None, Option(metavar="FILE", help="write to a file instead of the screen")] = None,
    studies: Annotated[
        list[Path] | None,
        Option(
            metavar="DIR", help="also read this study, or all in this folder, besides those in ZOO_HOME; repeatable"
        ),
    ] = None,
    show: Annotated[
        list[str] | None,
        Option(
            metavar="MODEL",
            help="with --format html: also show what this model finds, its map and its spectrum; repeatable",
        ),
    ] = None,
    show_dataset: Annotated[
        str | None, Option(metavar="D", help="data set of --show (default: the one that the model was trained for)")
    ] = None,
    data: Annotated[
        str | None,
        Option(metavar="DIR", help="folder of the data set of --show, or the folder or table (default: ZOO_DATA)"),
    ] = None,
    projection: Projection = "pca",
    runtime: Runtime = "auto",
) -> None:
    """compare published numbers with the models here"""
    from training.studies.compare import compare_tables, find_runs
    from training.studies.compare_page import FORMATS, as_html
    from zoo.errors import UsageError
    from zoo.models.published import published_table, select_tables

    if show and output != "html":
        raise UsageError("--show draws pictures, which only --format html holds.", code="conflicting-options")
    tables = select_tables(paper, dataset)
    if table is not None:
        named = published_table(table)
        tables = [candidate for candidate in tables if candidate is named]
    if not tables:
        raise UsageError("no published table matches all of that. All tables: zoo benchmark list", code="unknown-name")
    rows = compare_tables(tables, dataset, find_runs(studies or []))
    if output == "html":
        text = as_html(rows, _model_sections(show or [], show_dataset, data, projection, runtime))
    else:
        text = FORMATS[output](rows)
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)


def _model_sections(
    models: Sequence[str], dataset: str | None, data: str | None, projection: str, runtime: str
) -> list[Section]:
    """Return the sections of the models' reports, under the models' names."""
    if not models:
        return []
    from zoo.report.model import sections

    pages = []
    for name in models:
        model, images = open_model_and_images(name, dataset, "test", data, runtime)
        with leaving_out() as unreadable:
            parts = sections(model, images, projection, unreadable=unreadable)
        pages += [replace(part, heading=f"{model.card.name} on {images.identity}: {part.heading}") for part in parts]
    return pages


# zoo benchmark models

MODEL_COLUMNS = ("metric", "model", "head", "dim", "pixels", "mean", "95 %", "seeds")
MODEL_NUMBERS = ("dim", "pixels", "mean", "seeds")


@app.command(
    "models",
    epilog="""\
  for s in 1 2 3; do zoo train ms-conv4-glyphs --seed $s --as ms-seed$s; done
  zoo benchmark models --dataset glyphs
  zoo benchmark models --dataset glyphs --against margin-conv4-glyphs --metric recall_at_1
  zoo benchmark models --dataset glyphs --against margin-conv4-glyphs --margin recall_at_1=.01    what is equivalent
  zoo benchmark models --dataset birds.csv                       a folder or table by its own name
  zoo benchmark models margin-conv4-glyphs r-margin-conv4-glyphs --json

The scores are those that zoo evaluate --save kept, the newest of each model, by torch in fp32 if there is one. Each
table is of the same images, named with their short hash; scores on other images are not compared.
Models whose recipes differ in name and seed alone are one row: mean, standard deviation and the 95 % interval of the
mean over seeds and classes. A single model has an interval over classes, which leaves out the seed. Differences are
taken seed by seed and class by class, between measurements of the same kind. All models by one metric on the same
images are one family: p is adjusted by Holm. With --margin, models within it are called equivalent (TOST).""",
)
def models(
    names: Annotated[
        list[str] | None, Argument(metavar="[MODEL]...", help="only these, each with its seeds (default: all)")
    ] = None,
    dataset: ScoresOn = None,
    metric: Annotated[
        list[str] | None, Option(metavar="NAME", help="metric to show; repeatable (default: recall_at_1 and map_at_r)")
    ] = None,
    against: Annotated[
        str | None, Option(metavar="MODEL", help="also show each model's difference to this one, paired by seed")
    ] = None,
    margins: Margins = None,
    latex: Latex = False,
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """compare the models measured here, seeds as one row"""
    from training.studies.compare import find_runs
    from training.studies.compare_own import own_scores
    from zoo.data import check_dataset_name
    from zoo.errors import UsageError
    from zoo.evaluation.evaluate import METRICS
    from zoo.evaluation.statistics import CLASSES, ONE_SEED, VERDICT_RULE, check_margins, parse_margins

    form = table_form(latex, as_csv)
    metrics, limits = metric or METRICS, parse_margins(margins or ())
    if limits and against is None:
        raise UsageError("--margin needs --against MODEL.", code="missing-value")
    check_margins(limits, metrics)
    rows = own_scores(find_runs(), names or [], dataset, metrics, against, limits)
    if dataset is not None and not rows:  # else it may be a folder's or table's own name
        check_dataset_name(dataset)
    if as_json:
        print_json([_row_facts(row) for row in rows])
    elif rows:
        for number, (_, group) in enumerate(groupby(rows, key=lambda row: row.images)):
            print("\n" * bool(number), end="")
            _print_images(list(group), against, form)
        if form == "text" and any(row.ours.over == CLASSES or (row.difference and row.difference.note) for row in rows):
            print(f"Intervals of one seed are {ONE_SEED}.")
        if against and form == "text":
            print(f"{VERDICT_RULE} A family is all models by one metric on the same images.")
    else:
        note("no such measurement exists yet; measure a model with: zoo evaluate MODEL --save")
    for name in names or [] if rows else []:
        if not any(name in row.ours.runs or name == row.name for row in rows):
            note(f"{name} is not shown: it has no such score")


def _print_images(rows: Sequence[OwnScore], against: str | None, form: str) -> None:
    """Print the scores on the same images, and a table of their differences to the named model, if one is."""
    if form == "text":
        print(_images_heading(rows))
    print_table(Table((*MODEL_COLUMNS, "how"), [_model_cells(row) for row in rows], MODEL_NUMBERS), form)
    if against:
        columns = ("metric", "model", f"less {against}", "95 %, paired", "p (Holm)", "verdict")
        print_table(Table(columns, [_difference_cells(row) for row in rows], columns[2:3]), form)


def _images_heading(rows: Sequence[OwnScore]) -> str:
    """Return the name of the images of a table, and the number of their classes."""
    from zoo.data.dataset import split_title
    from zoo.models.results import few_classes_note

    images, classes = rows[0].images, rows[0].classes
    heading = f"{images.title}, {split_title(images.split)}" + (f", {count(classes, 'class')}" if classes else "")
    note_on_classes = few_classes_note(classes)
    return f"{heading} ({note_on_classes})" if note_on_classes else heading


def _row_facts(row: OwnScore) -> dict[str, Any]:
    """Return a row for programs, without the runs themselves."""
    from zoo.evaluation.statistics import CLASSES, ONE_SEED

    facts, images = asdict(row), row.images
    del facts["images"], facts["ours"]["models"]
    facts["ours"]["note"] = ONE_SEED if row.ours.over == CLASSES else ""
    return {"dataset": images.dataset, "split": images.split, "data": images.title, "data_key": images.key, **facts}


def _model_cells(row: OwnScore) -> list[str]:
    from training.studies.compare_page import interval_over, origin_text

    ours = row.ours
    model = [row.metric, row.name, row.head or "-", str(row.dim), str(row.pixels or "-")]
    cells = [*model, score_text(ours.value, ours.sd)]
    return [*cells, interval_over(ours.interval, ours.over), str(len(ours.runs)), origin_text(ours)]


def _difference_cells(row: OwnScore) -> list[str]:
    less = row.difference
    verdict = less.verdict if less else None
    cells = [row.metric, row.name, "-" if less is None else score_text(less.estimate.mean, sign="+"), _paired_cell(row)]
    return [*cells, *(["", ""] if verdict is None else [verdict.p_text, str(verdict)])]


def _paired_cell(row: OwnScore) -> str:
    """Return the interval of the difference, or why it or the difference is missing."""
    from training.studies.compare_page import interval_over

    if row.difference is None:
        return row.no_difference
    found, seeds = row.difference.estimate, len(row.difference.seeds)
    over = f"{found.over}" if seeds else f"{found.over}, of unlike seeds"
    over = over.replace("seeds", count(seeds, "seed")) if seeds > 1 else over
    return interval_over(found.interval, over) or f"none: {'all are equal' if found.error == 0 else 'one seed'}"


# zoo benchmark curves


@app.command(
    "curves",
    epilog="""\
  zoo benchmark curves margin-conv4-glyphs group-conv4-glyphs --out curves.pdf
  zoo benchmark curves margin-conv4-glyphs --metric loss --out loss.csv
  zoo benchmark curves margin-conv4-glyphs --metric validation_recall_at_1 --out recall.png""",
)
def curves(
    names: Annotated[list[str], Argument(metavar="MODEL...", help="trained models, a curve each")],
    out: Annotated[Path, Option(metavar="FILE", help="the file to write: .pdf, .png, .svg or .csv")],
    metric: Annotated[str, Option(metavar="NAME", help="what to draw, as in the models' log.jsonl")] = "loss",
) -> None:
    """draw what several runs logged by epoch in one figure"""
    from zoo.report.curves import draw_curves

    draw_curves(names, metric, out)
    print(f"curves of {count(len(names), 'run')} written to {out}")


# zoo benchmark report


@app.command(
    "report",
    epilog="""\
  zoo benchmark report margin-conv4-glyphs --out glyphs.html
  zoo benchmark report margin-conv4-glyphs --runtime onnx --out glyphs.html      without torch
  zoo benchmark report MODEL --dataset folder --data DIR --out pictures.html     one folder of images per class
  zoo benchmark report mine --data DIR --out mine.html    the classes that zoo finetune DIR --as mine held out
Images of a folder or table that cannot be read are left out and counted: the exit status is 0, with --strict 1.""",
)
def report(
    model: Model,
    out: Annotated[Path, Option(metavar="FILE", help="the page to write (.html)")],
    dataset: Dataset = None,
    data: Data = None,
    split: Split = "test",
    projection: Projection = "pca",
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    device: Device = None,
    batch_size: BatchSize = 64,
    strict: Strict = False,
) -> int:
    """write a model's report as one HTML page"""
    from zoo.errors import UsageError
    from zoo.report.model import report as report_page

    if any((Path(model) / plan).is_file() for plan in ("plan.json", "search.json")):
        raise UsageError(
            f"{model} is a study, which reports itself: {command('benchmark', 'resume', model, '--report')}",
            code="not-available",
        )
    embedder, images = open_model_and_images(model, dataset, split, data, runtime, precision, device)
    with leaving_out() as unreadable:
        text = report_page(embedder, images, projection, batch_size, True, unreadable)
    write_text(out, text)
    print(f"report of {embedder.card.name} on {images.title} written to {out} ({len(text.encode()) / 1024:,.0f} KiB)")
    return strict_status(strict, unreadable)


# zoo benchmark served


@app.command(
    "served",
    epilog="""\
  zoo benchmark served gallery/                                   the model's data set, then the gallery's items
  zoo benchmark served gallery/ --dataset folder --data photos/   the images that were indexed: all steps on the same
  zoo benchmark served gallery/ --torch no --json                 without torch, as JSON
Images of a folder or table that cannot be read are left out and listed.
A loss is against the step before; its interval is of paired differences, over classes.""",
)
def served(
    gallery: GalleryAddress,
    dataset: Dataset = None,
    data: Data = None,
    split: Split = "test",
    model: MovedModel = None,
    queries: Annotated[int, Option(metavar="N", help="largest number of items that are used as queries")] = 2000,
    torch: Annotated[
        Literal["auto", "yes", "no"], Option(help="measure the torch model; auto: if torch is installed")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """measure what retrieval loses from torch to the gallery"""
    from serving.gallery import VectorGallery
    from serving.gallery.evaluate import measure

    with_torch = {"auto": None, "yes": True, "no": False}[torch]
    with VectorGallery.open(gallery) as opened:
        images = _served_images(opened, dataset, split, data)
        outcome = measure(opened, model or opened.model_ref, images, with_torch, queries)
    if as_json:
        print_json(outcome)
    else:
        _print_steps(outcome)


def _served_images(gallery: VectorGallery, dataset: str | None, split: str, data: str | None) -> DataSet | None:
    """Return the data set; None if none is named and the model's own is missing: then only the gallery is measured."""
    from zoo.data import load_dataset
    from zoo.data.dataset import FOLDER
    from zoo.data.decode import readable_subset
    from zoo.errors import DatasetError

    if dataset or data:
        images = load_dataset(dataset or gallery.card.dataset, split, data)
        images, unreadable = readable_subset(images) if images.name == FOLDER else (images, {})
        note_left_out(unreadable.values())
        return images
    try:
        return load_dataset(gallery.card.dataset, split)
    except DatasetError as error:
        again = command("benchmark", "served", gallery.address, "--dataset", FOLDER, "--data", "DIR")
        note(f"only the gallery is measured: {error} To embed the images that were indexed: {again}")
        return None


def _print_steps(outcome: dict[str, Any]) -> None:
    from zoo.models.results import data_title

    index, model = outcome["index"], f"{outcome['model']} ({outcome['fingerprint'][:8]})"
    items = f"{count(outcome['items'], 'item')} embedded by {model}"
    print(f"{outcome['gallery']}: {items}, {index['kind']} index; {outcome['date']}")
    if (recall := outcome["index_recall_at_10"]) is not None:
        print(f"the index finds {recall:.4f} of the 10 nearest that exact search finds")
    if outcome["dataset"]:
        same = "the gallery's own images" if outcome["same_images"] else "not the gallery's images: apart from it"
        print(f"models are measured on {data_title(outcome)}, {same}")
    columns = ("step", "queries", "classes", "R@1", "loss of R@1", "95 %", "MAP@R", "loss of MAP@R", "95 %")
    numbers = [column for column in columns[1:] if column != "95 %"]
    print_table(Table(columns, [_step_cells(step) for step in outcome["steps"]], numbers))


def _step_cells(step: dict[str, Any]) -> list[str]:
    cells = [step["step"], f"{step['queries']:,}", f"{step['classes']:,}"]
    for name in ("recall_at_1", "map_at_r"):
        loss = step["loss"]
        bounds = loss["intervals"].get(name) if loss else None
        cells += [
            f"{step['metrics'][name]:.4f}",
            f"{loss[name]:+.4f}" if loss else "-",
            interval_text(bounds, "+") or "-",
        ]
    return cells


# zoo benchmark baselines


@app.command(
    "baselines",
    epilog="""\
  zoo benchmark baselines --data pictures                          one subfolder per class, or a table: image,label
  zoo benchmark baselines --data pictures --out models.html        a page with the plot
  zoo benchmark baselines --data pictures --no-hub --json          without downloads, as JSON
  zoo benchmark baselines --data pictures --model photos --model dinov2-s14

It measures the shipped models, those made here, installed packages of weights, and the public backbones of the Hub.
Half of the classes are drawn; all scores are of the other half. Rows "whitened" were whitened on the drawn classes
without labels; rows "linear" have a linear map fitted with their labels, which shows whether training helps. The
embeddings are kept in ZOO_HOME/cache/baselines, so an interrupted run continues. Times are of this machine.""",
)
def baselines(
    data: Annotated[str, Option(metavar="DIR", help="your images: one subfolder per class, or a table (CSV)")],
    model: Annotated[
        list[str] | None, Option("--model", metavar="MODEL", help="only this model; repeatable (default: all)")
    ] = None,
    hub: Annotated[bool, Option("--hub/--no-hub", help="download public backbones that are not here")] = True,
    out: Annotated[Path | None, Option(metavar="FILE", help="also write a page with a plot: .html")] = None,
    split: Annotated[str, Option("--split", metavar="SPLIT", help="train, test or all")] = "all",
    runtime: Runtime = "auto",
    device: Device = None,
    batch_size: BatchSize = 64,
    seed: Seed = 0,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """measure all available models on your images"""
    from zoo.data import load_dataset
    from zoo.data.dataset import FOLDER
    from zoo.data.decode import readable_subset
    from zoo.errors import UsageError
    from zoo.files import write_bytes
    from zoo.report.baselines import (
        as_html,
        available_models,
        compare_baselines,
        protocol,
        remarks,
        suitable_models,
        table,
    )
    from zoo.report.figures import check_matplotlib

    check_at_least("--seed", seed, 0)
    if out is not None:
        if out.suffix.lower() != ".html":
            raise UsageError(f"--out {out}: its name ends in .html.", code="unknown-format")
        check_matplotlib()
    images, unreadable = readable_subset(load_dataset(FOLDER, split, data))
    note_left_out(unreadable.values())
    models, unsuited = available_models(model or (), hub), dict[str, str]()
    if not model:
        models, unsuited = suitable_models(models, images)
    comparison = compare_baselines(
        images, models, batch_size, device, runtime, seed, data, unsuited, lambda name: note(f"{name} ...")
    )
    if out is not None:
        with write_errors(out):
            write_bytes(out, as_html(comparison).encode())
    if as_json:
        print_json(comparison.to_json())
    else:
        scores = table(comparison)
        print(protocol(comparison))
        print_table(scores)
        print(*remarks(comparison), "", *comparison.recommendation, sep="\n")
    return strict_status(strict, unreadable)
