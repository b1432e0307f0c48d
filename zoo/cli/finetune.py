"""`zoo finetune` and `zoo distill`: new models from others, with a comparison of the two."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import (
    AugmentedViews,
    Data,
    Device,
    Json,
    Latex,
    NamedDataset,
    NewName,
    Quiet,
    ReplaceModel,
    Seed,
    Settings,
    Strict,
    TestShare,
    strict_status,
)
from zoo.console import count, interval_text, note, print_json, print_table, show, tables_in_latex
from zoo.errors import command
from zoo.render import Table

if TYPE_CHECKING:
    from training.distillation.fidelity import Score
    from training.finetune import Finetuned
    from training.finished import Distilled, FinishedRun
    from zoo.evaluation.selection import MetricChange, Selection
    from zoo.models.card import Card

app = typer.Typer()


def _print_next_step(name: str, folder: Path, images: str | None) -> None:
    """Print where a new model is, and how to search the images of a folder or table with it."""
    index = command("index", name, images or "DIR", "--out", f"{name}-gallery")
    show(f"Written to {folder}.")
    show(f"Index pictures with: {command('export', name)} && {index}")


# zoo finetune


@app.command(
    "finetune",
    epilog="""\
  zoo finetune pictures/ --from photos --as fitted                     heads on a frozen trunk: minutes on a CPU
  zoo finetune pictures/ --from dinov2-s14 --tune lora                 low-rank adapters of a vision transformer
  zoo finetune pictures/ --from dinov2-s14 --tune prompt               learnt prompts of a vision transformer
  zoo finetune pictures/ --from photos --tune all --method ms                 the whole trunk
  zoo finetune shoes.csv --from timm/resnet50.a1_in1k                  a table with the columns image,label
  zoo finetune pictures/ --from MODEL --set schedule.epochs=5 --json

Some of the classes (--test-share, drawn by --seed) are kept out of training, and the table shows R@1 and MAP@R on them
before and after. Which ones is written into the new model's recipe.json. A quarter of the other classes, at least two,
choose what is kept: the unchanged base, the new head before training, or the best epoch. With fewer than four classes
to train on, the base is kept. A name that is taken is refused; the same command continues after an interruption. At
least four classes of two images are needed; unreadable images and classes of one image are left out and named: the
exit status is 0, with --strict 1 if an image could not be read.""",
)
def finetune(
    source: Annotated[
        str, Argument(metavar="DIR", help="a folder with one subfolder per class, or a table (CSV: image,label)")
    ],
    base: Annotated[str, Option("--from", metavar="NAME", help="the model to start from")],
    method: Annotated[str, Option(help="margin, ms, pa, diva, ...: see zoo list --recipes")] = "margin",
    tune: Annotated[
        Literal["head", "norm", "last", "lora", "prompt", "all"],
        Option(
            help="what learns: head, new heads on the unchanged trunk, which takes minutes on a CPU; with the heads, "
            "norm: normalisation layers; last: the last stage or block; lora: low-rank adapters; prompt: "
            "prompts of a vision transformer; all: everything"
        ),
    ] = "head",
    settings: Settings = None,
    new_name: NewName = None,
    replace: ReplaceModel = False,
    test_share: TestShare = 0.3,
    seed: Seed = 0,
    views: AugmentedViews = 8,
    device: Device = None,
    strict: Strict = False,
    latex: Latex = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """fit a model to your own images, and measure it

    The scores are of classes that are held out; if the starting model has seen some of them, the command says so.
    --views is only for --tune head. The new model's name is NAME-finetuned, unless --as gives another.
    """
    from training.named import finetune as finetune_model

    started = time.monotonic()
    fitted = finetune_model(
        base,
        source,
        method=method,
        tune=tune,
        settings=settings or (),
        name=new_name,
        replace=replace,
        test_share=test_share,
        seed=seed,
        views=views,
        device=device,
        progress=not quiet,
    )
    if as_json:
        seconds = {"training_seconds": fitted.outcome.seconds, "seconds": time.monotonic() - started}
        print_json({**fitted.to_json(), **seconds})
    else:
        with tables_in_latex(latex):
            _print_finetuned(fitted, base, source)
    return strict_status(strict, fitted.pictures.unreadable)


def _print_finetuned(fitted: Finetuned, base: str, source: str) -> None:
    from zoo.evaluation.selection import change_table
    from zoo.evaluation.statistics import ONE_SEED

    for text in fitted.pictures.notes():
        note(text)
    split, selection, (before, after) = fitted.split, fitted.selection, fitted.dims
    images, classes = len(split.train) - selection.images, len(split.train.classes) - selection.classes
    if fitted.outcome.epochs:
        show(f"trained on {count(images, 'image')} of {count(classes, 'class')} in {fitted.outcome.seconds:.0f} s")
    show(_choice(selection, fitted.outcome.name, len(split.train.classes)))
    show(
        f"measured on {split.test.identity}, {count(len(split.test), 'image')} of "
        f"{count(len(split.test.classes), 'class')} "
        f"{novelty(fitted.seen_classes, fitted.unread)}"
    )
    _print_origin(fitted.outcome, "before", fitted.base)
    print_table(change_table(fitted.rows))
    show(f"Intervals are {ONE_SEED}.")
    for line in _losses(fitted.rows):
        show(line)
    if selection.kept != "base" and any(row.difference < 0 for row in fitted.rows):
        show(f"the base is unchanged, if you prefer it: {base}")
    _print_dims(before, after)
    _print_next_step(fitted.outcome.name, fitted.outcome.folder, source)


def _print_origin(outcome: FinishedRun, role: str, other: Card) -> None:
    """Print how the scores of a new model, and of the model beside it, came about."""
    from zoo.models.results import origin_text

    if outcome.evaluation is not None:
        evaluation = outcome.evaluation
        how = f"{evaluation.runtime} in {evaluation.precision}; {origin_text(evaluation.to_json())}"
        show(f"{how}; {role}: {other.name}, model {other.fingerprint[:8]}")


def _print_dims(before: int, after: int) -> None:
    """Print how the length of a vector changes, in numbers and in bytes of float32."""
    if before != after:
        show(f"a vector has {after:,} numbers instead of {before:,}: {4 * after:,} bytes instead of {4 * before:,}")


def _choice(selection: Selection, name: str, classes: int) -> str:
    """Return how the model that is kept was chosen, of this many training classes."""
    from zoo.models.results import few_classes_note

    if selection.chosen_by == "too-few-classes":
        return (
            f"{count(classes, 'training class', 'training classes')} cannot show whether training helps on other "
            f"classes, which takes four or more; kept: the base, unchanged, under the name {name}. Train all the same "
            "with --set data.validation=0"
        )
    if selection.chosen_by == "last-epoch":
        return (
            "no training classes were held out to choose by (data.validation=0), so the trained model is kept, whether "
            "or not it is better than its start"
        )
    changes = "; ".join(
        f"{row.metric} {row.before:.4f} -> {row.after:.4f} ({row.difference:+.4f}, 95 % "
        f"{interval_text(row.difference_interval, '+')})"
        for row in selection.rows
    )
    if warning := few_classes_note(selection.classes):
        changes = f"{changes}; {warning}"
    kept = selection.model_text + (f", under the name {name}" if selection.kept == "base" else "")
    return f"{selection.reason}: {changes}; kept: {kept}"


def _losses(rows: Iterable[MetricChange]) -> Iterator[str]:
    """Yield a sentence for each metric that fell."""
    for row in rows:
        if row.difference < 0:
            yield f"{row.metric} is lower: {row.difference:+.4f} ({interval_text(row.difference_interval, '+')})"


def novelty(seen_classes: tuple[str, ...], unread: Path | None = None) -> str:
    """Return how new the test classes are to a finetuned model, as the end of a sentence about them.

    Args:
        seen_classes: The test classes that the starting model was trained or whitened on.
        unread: The recipe.json of the starting model, if it cannot be read.
    """
    if not seen_classes and unread is None:
        return "that it never saw"
    parts = ["that were held out"]
    if seen_classes:
        names = ", ".join(seen_classes[:5]) + (", ..." if len(seen_classes) > 5 else "")
        parts.append(
            f". The starting model had seen {len(seen_classes)} of them, in its training or its whitening ({names}), "
            "so the scores of both models are too high. Measure on other classes or, if it was itself finetuned on "
            "these images, with the --seed and --test-share of then"
        )
    if unread is not None:
        parts.append(
            f". {unread} cannot be read, so it is not known whether the starting model has seen "
            f"{'more of them' if seen_classes else 'them'}: the scores of both models may be too high"
        )
    return "".join(parts)


# zoo distill

SEARCHERS = {"teacher": "teacher", "student": "student", "cross": "student in the teacher's gallery"}


@app.command(
    "distill",
    epilog="""\
  zoo distill dinov2-s14 pictures/ --backbone mobilenetv3_small_100 --pretrained true --size 128 --as small
  zoo distill margin-conv4-glyphs --dataset glyphs --backbone conv4 --set backbone.args.widths=[8,16,24,32] --as tiny
  zoo distill MODEL pictures/ --backbone resnet18 --loss rkd --dim 64    fewer dimensions than the teacher has
  zoo distill MODEL pictures/ --backbone resnet18 --set schedule.epochs=100 --as longer --json
  zoo distill MODEL birds.csv --backbone resnet18 --as birds    a table: image and, if there are labels, label

losses: embedding: the teacher's own embeddings (same dimension; the student can search rows that the teacher made);
rkd: its distances and angles; similarity: its similarities in a batch. Their arguments, as JSON:
--set 'objective.method_args.transfer_args={"temperature": 0.1}'

Student and teacher see the same augmented views, each in its own size; the teacher runs at every step. Labels are not
needed. A share of the images is held out to measure on: of the classes, if all images are in folders named after them,
or all rows of the table have a label. The folders train and test, the column split, or a data set's splits are used
if they exist. The same command continues after an interruption; longer schedules bring the student nearer.
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
def distill(
    teacher: Annotated[str, Argument(help="the model to learn from: its name, or the path of a model folder")],
    backbone: Annotated[str, Option(metavar="NAME", help="the student's: conv4, resnet18, any of timm")],
    images: Annotated[
        str | None,
        Argument(
            metavar="DIR",
            help="a folder of images, or a table of them (CSV: image and, if there are such columns, label,split); "
            "with labels or without",
        ),
    ] = None,
    new_name: NewName = None,
    loss: Annotated[str, Option(help="embedding, rkd or similarity; see below")] = "embedding",
    dim: Annotated[
        int | None, Option(metavar="N", help="dimension of the student's embedding (default: the teacher's)")
    ] = None,
    size: Annotated[
        int | None, Option(metavar="PIXELS", help="size of the student's images (default: the teacher's)")
    ] = None,
    pretrained: Annotated[
        str | None,
        Option(
            metavar="WEIGHTS",
            help="weights to start from: true (timm's), a model, a file or org/name (default: random)",
        ),
    ] = None,
    settings: Settings = None,
    dataset: NamedDataset = None,
    data: Data = None,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    replace: ReplaceModel = False,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """train a small model to embed as a strong one does

    Images without labels are enough. The student's name is TEACHER-distilled, unless --as gives another.
    """
    from training.named import distill as distill_model

    distilled = distill_model(
        teacher,
        images,
        backbone=backbone,
        loss=loss,
        dim=dim,
        size=size,
        pretrained={"false": False, "true": True}.get(pretrained or "false", pretrained or False),
        settings=settings or (),
        dataset=dataset,
        data=data,
        name=new_name,
        replace=replace,
        test_share=test_share,
        seed=seed,
        device=device,
        progress=not quiet,
    )
    if as_json:
        print_json(distilled.to_json())
    else:
        _print_distilled(distilled, images)
    return strict_status(strict, distilled.pictures.unreadable)


def _print_distilled(distilled: Distilled, images: str | None) -> None:
    from zoo.evaluation.statistics import ONE_SEED

    pictures, fidelity = distilled.pictures, distilled.fidelity
    for source, reason in pictures.unreadable.items():
        note(f"left out, cannot be read: {source}: {reason}")
    classes = len(pictures.test.classes)
    kind = f" of {count(classes, 'class')}" if pictures.labelled else ", without labels"
    selection = distilled.selection
    learnt = count(len(pictures.train) - selection.images, "image")
    chosen = f"epoch {selection.epoch}, best on {count(selection.classes, 'other training class')}"
    print(
        f"learnt from {distilled.teacher.name} on {learnt} in {distilled.outcome.seconds:.0f} s; "
        f"kept: {chosen if selection.classes else 'the last epoch (no training classes were held out to choose by)'}; "
        f"measured on {pictures.test.identity}, {count(len(pictures.test), 'other')}{kind}"
    )
    _print_origin(distilled.outcome, "teacher", distilled.teacher)
    if distilled.seen_classes:
        print(
            f"the teacher had seen {len(distilled.seen_classes)} of these classes, in its training or its whitening: "
            "the scores of both models are too high"
        )
    roles = [role for role in SEARCHERS if any(role in scores for scores in fidelity.retrieval.values())]
    if roles:
        rows = [[metric, *(_score(scores[role]) for role in roles)] for metric, scores in fidelity.retrieval.items()]
        print_table(Table(("metric", *(SEARCHERS[role] for role in roles)), rows))
    for row in distilled.rows:
        print(
            f"{row.metric} of the student less the teacher's: {row.difference:+.4f} "
            f"({interval_text(row.difference_interval, '+')}, paired)"
        )
    if distilled.rows:
        print(f"Intervals are {ONE_SEED}.")
    _print_dims(distilled.teacher.dim, distilled.dim)
    fidelity_rows = [
        [f"share of the teacher's {fidelity.k} nearest images that it finds too", _score(fidelity.neighbours)]
    ]
    if fidelity.cosine is not None:
        fidelity_rows.append(["cosine to the teacher's embedding", _score(fidelity.cosine)])
    print_table(Table(("student beside teacher", "mean (95 %)"), fidelity_rows))
    _print_next_step(distilled.outcome.name, distilled.outcome.folder, images)


def _score(score: Score) -> str:
    return f"{score.value:.4f} ({interval_text((score.low, score.high))})"
