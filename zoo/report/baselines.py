"""Comparison of every available model on one labelled folder, plain and with a linear head, and a recommendation.

Each model embeds the images once; the rows are kept in the cache. A share of the classes is drawn, and all scores are
of the others: plain rows, rows whitened on the drawn classes without their labels (Jégou & Chum 2012, section 3), and
rows of the cheapest training, a linear map that whitens the scatter within the drawn classes (Mikolajczyk & Matas 2007,
Improving Descriptors for Fast Tree Matching by Optimal Linear Projection). The last one shows whether labels help.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from zoo import paths
from zoo.console import count, interval_text
from zoo.data.dataset import Dataset, subset
from zoo.data.folder import ClassSplit, split_classes
from zoo.data.images import open_image
from zoo.data.table import LABEL, PATH
from zoo.errors import HubError, HubUnreachableError, UsageError, ZooError, command
from zoo.evaluation.embeddings import read_embeddings, write_embeddings
from zoo.evaluation.evaluate import METRICS, evaluate
from zoo.evaluation.inputs import unit_rows
from zoo.evaluation.split import learnt_classes, read_whitened_classes
from zoo.evaluation.statistics import BETTER, ONE_SEED, WORSE, Estimate, difference_over_classes, judge
from zoo.files import read_json, write_json
from zoo.models.card import read_card
from zoo.models.catalogue import ModelInfo, list_models
from zoo.models.load import load
from zoo.models.names import find_model
from zoo.models.results import Evaluation
from zoo.models.whitening import SHRINK, check_can_be_whitened, default_dim, fit_whitening, within_class_whitening
from zoo.render import Table
from zoo.report.figures import COLOURS, trade_off
from zoo.report.html import SVG, Legend, Paragraph, Picture, Section, page

PLAIN, WHITENED, LINEAR = "plain", "whitened", "linear"

LEAST_CLASSES = 8
"""The least number of classes of two images that are divided; fewer are measured whole and plain."""

FIT_SHARE = 0.5
"""The share of the classes that the whitening and the linear map are fitted on."""


CHOSEN_BY = "map_at_r"
"""The metric that decides the recommendation."""

CHARACTERS = ("glyphs", "omniglot")
"""Data sets of drawn characters."""

SEEN, LARGE, COLOURLESS = 32, 64, 4
"""Number of images that show whether they are photographs, the pixels of the short side and the mean range of the
channels, 0 to 255, that photographs exceed."""

FLOAT_BYTES = 4

UNREACHABLE = "the Hub cannot be reached"


@dataclass(frozen=True)
class BaselineScore:
    """Scores of one model in one form.

    Attributes:
        model: Its name.
        fingerprint: Its weights and preprocessing.
        form: "plain", "whitened" or "linear".
        dim: Numbers per vector.
        bytes: Bytes per vector, in float32.
        milliseconds: Wall time per image with decoding, on this machine, when the rows were made.
        runtime: The runtime that made the rows.
        metrics: R@1 and MAP@R, as fractions.
        intervals: Their 95 % intervals over classes.
        class_scores: Scores of each class, for paired intervals.
        notes: Reasons why the scores flatter the model.
    """

    model: str
    fingerprint: str
    form: str
    dim: int
    bytes: int
    milliseconds: float
    runtime: str
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    class_scores: Mapping[str, Sequence[float]]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.model}, {self.form}"


@dataclass(frozen=True)
class BaselineComparison:
    """Outcome of the comparison.

    Attributes:
        data: Name and hash of the measured images.
        images: Their number.
        classes: The number of their classes.
        fitted_images: The number of images of the fits; 0 if there were too few classes to divide.
        fitted_classes: The number of their classes.
        seed: The seed that drew them.
        rows: The best MAP@R first.
        left_out: Model -> why it was not measured.
        not_whitened: Model -> why it has no whitened row.
        recommendation: Sentences: which model, and whether to train.
    """

    data: str
    images: int
    classes: int
    fitted_images: int
    fitted_classes: int
    seed: int
    rows: tuple[BaselineScore, ...]
    left_out: Mapping[str, str]
    not_whitened: Mapping[str, str]
    recommendation: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval_note": ONE_SEED}


@dataclass(frozen=True)
class EmbeddedImages:
    """Rows of all images by one model: float32 [n, d], with the milliseconds per image and the runtime."""

    name: str
    folder: Path
    fingerprint: str
    rows: np.ndarray
    milliseconds: float
    runtime: str


def available_models(names: Sequence[str] = (), hub: bool = True) -> list[ModelInfo]:
    """Return the models that can be measured: shipped, made here, of installed packages, and of the Hub or its cache.

    Args:
        names: Only these models; any name that `zoo.load` takes.
        hub: Whether to include models whose weights have to be downloaded.
    """
    known = list_models()
    if names:
        by_name = {model.name: model for model in known}
        return [by_name.get(name) or ModelInfo(name, "hub", 0, "", "", "") for name in names]
    return [model for model in known if hub or model.folder is not None or model.status == "package"]


def suitable_models(models: Sequence[ModelInfo], images: Dataset) -> tuple[list[ModelInfo], dict[str, str]]:
    """Return the models that suit the images, and why each of the others does not.

    Models of drawn characters know nothing of photographs.
    """
    if not are_photographs(images):
        return list(models), {}
    drawn = [model for model in models if model.dataset in CHARACTERS]
    reason = "of drawn characters, not for photographs; name it with --model to measure it all the same"
    return [model for model in models if model not in drawn], {model.name: reason for model in drawn}


def are_photographs(images: Dataset) -> bool:
    """Return whether images are large and have colour, as photographs, by `SEEN` of them, drawn evenly."""
    large = coloured = seen = 0
    for row in range(0, len(images), max(1, len(images) // SEEN)):
        image = open_image(images.images[row], draft=LARGE + 1).convert("RGB")
        seen += 1
        large += min(image.size) > LARGE
        coloured += bool(np.ptp(np.asarray(image, np.int16), axis=2).mean() > COLOURLESS)
    return 2 * large > seen and 2 * coloured > seen


def compare_baselines(
    images: Dataset,
    models: Sequence[ModelInfo],
    batch_size: int = 64,
    device: str | None = None,
    runtime: str = "auto",
    seed: int = 0,
    source: str = "DIR",
    left_out: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
) -> BaselineComparison:
    """Measure the models on readable images of a folder or table.

    Args:
        images: The images with their classes.
        models: The models; those that cannot be loaded are left out with the reason.
        batch_size: Images per batch.
        device: As in `zoo.load`.
        runtime: As in `zoo.load`.
        seed: The seed that draws the classes of the fits.
        source: The folder or table of the images, for the commands of the recommendation.
        left_out: Models that are not to be measured -> why.
        progress: Receives a line per model.

    Raises:
        UsageError: If no model could be measured (code "no-images"), or no class has two images (code
            "too-few-samples").
    """
    labelled, parts = _divide(images, seed)
    is_measured = np.isin(labelled.sources, parts.test.sources) if parts else np.ones(len(labelled), np.bool_)
    measured = parts.test if parts else labelled
    rows: list[BaselineScore] = []
    absent = dict(left_out)
    not_whitened: dict[str, str] = {}
    for model in models:
        progress(model.name)
        try:
            embedded = _embed_cached(model.name, labelled, batch_size, device, runtime, _without_hub(model, absent))
        except (ZooError, OSError) as error:
            absent[model.name] = _reason(error)
            continue
        rows += _measure(embedded, labelled, is_measured, measured, not_whitened)
    if not rows:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
        raise UsageError(f"no model could be measured. {reasons}", code="no-images")
    rows.sort(key=lambda row: -row.metrics[CHOSEN_BY])
    return BaselineComparison(
        data=str(measured.identity),
        images=len(measured),
        classes=len(measured.classes),
        fitted_images=int((~is_measured).sum()),
        fitted_classes=len(parts.train.classes) if parts else 0,
        seed=seed,
        rows=tuple(rows),
        left_out=absent,
        not_whitened=not_whitened,
        recommendation=tuple(recommend(rows, source)),
    )


def _embed_cached(
    name: str, images: Dataset, batch_size: int, device: str | None, runtime: str, refusal: str = ""
) -> EmbeddedImages:
    """Return the rows of a model; they are made once and kept in `ZOO_HOME/cache/baselines`.

    A cached file is used only if its record names the model's fingerprint and these images.

    Raises:
        ZooError: As `zoo.load`, and `HubError` with the `refusal` if the model is not on this machine.
    """
    if refusal and not _is_here(name):
        raise HubError(refusal)
    folder = find_model(name)
    card = read_card(folder)
    file = (
        paths.home() / "cache" / "baselines" / f"{card.name}-{card.fingerprint[:12]}-{images.identity.sha256[:12]}.npy"
    )
    timing = file.with_suffix(".time.json")
    names = [str(source) for source in images.sources]
    if timing.is_file() and file.is_file():
        try:
            found = read_embeddings(file)
            if found.record is not None:
                found.record.check_model(file, card)
                found.record.check_images(file, names)
                facts = read_json(timing)
                milliseconds = float(facts["milliseconds"])
                return EmbeddedImages(
                    card.name, folder, card.fingerprint, found.rows, milliseconds, found.record.runtime
                )
        except (UsageError, OSError, ValueError, KeyError, TypeError):
            pass  # made again below
    embedder = load(folder, runtime, device=device, images=len(images))
    embedder.embed(images.images[:1])  # the first run sets the runtime up
    started = time.perf_counter()
    rows = embedder.embed(images.images, batch_size, progress=True)
    milliseconds = 1000 * (time.perf_counter() - started) / len(images)
    file.parent.mkdir(parents=True, exist_ok=True)
    table = [
        {PATH: source, LABEL: images.classes[label]}
        for source, label in zip(names, images.labels.tolist(), strict=True)
    ]
    write_embeddings(file, rows, table, embedder)
    write_json(timing, {"milliseconds": milliseconds})
    return EmbeddedImages(card.name, folder, card.fingerprint, rows, milliseconds, embedder.runtime)


def fit_linear(features: np.ndarray, labels: np.ndarray, shrink: float = SHRINK) -> tuple[np.ndarray, np.ndarray]:
    """Fit `within_class_whitening` about the mean of all features: features @ weight.T + bias.

    Args:
        features: [n, f].
        labels: Class numbers [n].
        shrink: Share of the mean variance that is added to every direction.

    Returns:
        Weight float32 [f, f] and bias float32 [f].
    """
    weight = within_class_whitening(features, labels, shrink)
    return weight.astype(np.float32), (-weight @ features.mean(axis=0, dtype=np.float64)).astype(np.float32)


def recommend(rows: Sequence[BaselineScore], source: str = "DIR") -> Iterator[str]:
    """Yield the recommendation for rows with the best first, by paired differences over classes.

    All forms beside the best are one family. A model that knows images of the measured classes is chosen only if all
    do.

    Args:
        rows: The rows.
        source: The folder or table of the images, for the commands.
    """
    forms = [row for row in rows if row.form != LINEAR]
    fair = [row for row in forms if not row.notes] or forms
    best = fair[0]
    verdicts = judge([_difference(best, row) for row in fair[1:]], [None] * (len(fair) - 1))
    ties = [best, *(row for row, verdict in zip(fair[1:], verdicts, strict=True) if verdict.word != BETTER)]
    fastest = min(ties, key=lambda row: (row.milliseconds, row.bytes))
    score = _score_text(best)
    if len(forms) == 1:
        yield f"{best.title}: {score}. Nothing else was measured that it could be compared with."
    elif len(fair) == 1:
        yield f"{best.title}: {score}. No other form was made without images of these classes."
    elif len(ties) == 1:
        yield f"{best.title} is best without labels: {score}. The others are worse (Holm's p below .05)."
    else:
        others = ", ".join(row.title for row in ties[1:6]) + (" and others" if len(ties) > 6 else "")
        yield f"Undecided between {best.title} ({score}) and {others}: Holm's p of no difference is below .05."
        yield (
            f"Of these, {fastest.title} is the fastest ({fastest.milliseconds:.1f} ms per image, "
            f"{count(fastest.bytes, 'byte')} per vector)."
        )
    yield from best.notes[:1]
    if not best.notes:
        yield from dict.fromkeys(f"Not chosen: {note}" for row in forms for note in row.notes[:1])
    start = [*_commands(best, source)]
    if fastest is not best:
        start += _commands(fastest, source)
    advice, helps = _training_advice(rows, best, source)
    yield from [*start, advice] if helps else [advice, *start]


def _commands(row: BaselineScore, source: str) -> Iterator[str]:
    """Yield the commands that make a form a model, and a gallery of it."""
    name = row.model
    if row.form == WHITENED:
        name = f"{row.model}-whitened"
        yield f"Make {row.title}: {command('baseline', row.model, '--as', name, '--whiten', source)}"
    yield (
        f"Give it to a gallery of another model, unless labelled items show it to be worse: "
        f"{command('gallery', 'rebuild', 'GALLERY', '--model', name, '--swap')}"
    )
    yield f"Start with {row.title}: {command('index', name, source, '--out', 'GALLERY')}"


def _training_advice(rows: Sequence[BaselineScore], best: BaselineScore, source: str) -> tuple[str, bool]:
    """Return whether training is worthwhile, by the linear map of the best form's model: a sentence, and if it is."""
    finetune = command("finetune", source, "--from", best.model)
    trained = next((row for row in rows if row.form == LINEAR and row.model == best.model), None)
    if trained is None:
        return "Whether training helps is not known: that needs eight classes of two images or more.", False
    difference = _difference(trained, best)
    (verdict,) = judge([difference], [None])
    bounds = f"{difference.mean:+.4f} ({interval_text(difference.interval, '+') or 'equal in all classes'})"
    text = f"a linear map fitted with the labels of other classes changes MAP@R by {bounds}"
    if verdict.word == BETTER:
        return f"Training helps: {text}. Next: {finetune}", True
    if verdict.word == WORSE:
        return f"Labels do not help a linear map: {text}. To train the network all the same: {finetune}", False
    return f"Undecided whether to train: {text}. To see what training gains: {finetune}", False


def _divide(images: Dataset, seed: int) -> tuple[Dataset, ClassSplit | None]:
    """Return the images whose class has at least two, and their classes divided if there are enough."""
    several = np.bincount(images.labels, minlength=len(images.classes)) > 1
    usable = several & (np.array(images.classes) != "")
    if not usable.any():
        raise UsageError("no class has two images, so nothing can be measured.", code="too-few-samples")
    labelled = replace(subset(images, usable[images.labels], images.split), factors={})
    if len(labelled.classes) < LEAST_CLASSES:
        return labelled, None
    return labelled, split_classes(labelled, 1 - FIT_SHARE, seed)


def _measure(
    embedded: EmbeddedImages,
    images: Dataset,
    is_measured: np.ndarray,
    measured: Dataset,
    not_whitened: dict[str, str],
) -> Iterator[BaselineScore]:
    """Yield the rows of a model: plain, and whitened and linear where other classes are there to fit on.

    Why there is no whitened row is written to `not_whitened`.
    """
    notes = (
        *learnt_classes(embedded.folder).among_classes(measured).notes(embedded.name),
        *read_whitened_classes(embedded.folder).among_classes(measured).notes(embedded.name, "was whitened on"),
    )
    rows = unit_rows(embedded.rows[is_measured])
    yield _row(embedded, PLAIN, rows, measured, notes)
    if is_measured.all():
        return
    fit = unit_rows(embedded.rows[~is_measured])
    labels = images.labels[~is_measured]
    weight, bias = fit_linear(fit, labels)
    yield _row(embedded, LINEAR, rows @ weight.T + bias, measured, notes)
    try:
        check_can_be_whitened(read_card(embedded.folder))
        weight, bias = fit_whitening(fit, default_dim(*fit.shape), SHRINK)
    except UsageError as error:
        not_whitened[embedded.name] = str(error).rstrip(".")
    else:
        yield _row(embedded, WHITENED, rows @ weight.T + bias, measured, notes)


def _row(
    embedded: EmbeddedImages, form: str, rows: np.ndarray, images: Dataset, notes: tuple[str, ...]
) -> BaselineScore:
    measured: Evaluation = evaluate(rows, images)
    return BaselineScore(
        model=embedded.name,
        fingerprint=embedded.fingerprint,
        form=form,
        dim=rows.shape[1],
        bytes=FLOAT_BYTES * rows.shape[1],
        milliseconds=embedded.milliseconds,
        runtime=embedded.runtime,
        metrics={name: measured.metrics[name] for name in METRICS},
        intervals={name: measured.intervals[name] for name in METRICS if name in measured.intervals},
        class_scores=measured.class_scores or {},
        notes=notes,
    )


def _difference(row: BaselineScore, other: BaselineScore) -> Estimate:
    return difference_over_classes(row.class_scores, other.class_scores, CHOSEN_BY)


def _score_text(row: BaselineScore) -> str:
    parts = []
    for name, label in (("map_at_r", "MAP@R"), ("recall_at_1", "R@1")):
        bounds = row.intervals.get(name)
        interval = f" ({interval_text(bounds)})" if bounds else ""
        parts.append(f"{label} {row.metrics[name]:.4f}{interval}")
    return ", ".join(parts)


def _is_here(name: str) -> bool:
    """Return whether a model needs no download."""
    return any(
        model.name == name and (model.folder is not None or model.status == "package") for model in list_models()
    )


def _without_hub(model: ModelInfo, left_out: Mapping[str, str]) -> str:
    """Return why the Hub is not asked again: it did not answer for an earlier model; else ""."""
    if model.status != "hub":
        return ""
    return next((reason for reason in left_out.values() if reason.startswith(UNREACHABLE)), "")


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, HubUnreachableError) or text.startswith(UNREACHABLE) or "the Hub is not available" in text:
        return f"{UNREACHABLE}, and this machine does not have the weights"
    text = text.split("\n")[0]
    return text if len(text) <= 200 else text[:199] + "…"


def table(comparison: BaselineComparison) -> Table:
    """Return the rows, the best first."""
    columns = ("", "model", "form", "R@1", "MAP@R", "95 % over classes", "ms per image", "bytes per vector")
    cells = []
    for number, row in enumerate(comparison.rows, start=1):
        interval = interval_text(row.intervals.get(CHOSEN_BY)) or "-"
        scores = [f"{row.metrics[name]:.4f}" for name in METRICS]
        cost = [f"{row.milliseconds:.1f}", f"{row.bytes:,}"]
        cells.append([str(number), row.model + (" *" if row.notes else ""), row.form, *scores, interval, *cost])
    return Table(columns, cells, ("", "R@1", "MAP@R", "ms per image", "bytes per vector"))


def protocol(comparison: BaselineComparison) -> str:
    """Return the sentence that says what was measured on what."""
    measured = f"{count(comparison.images, 'image')} of {count(comparison.classes, 'class')} of {comparison.data}"
    if not comparison.fitted_images:
        return f"{measured}; fewer than {LEAST_CLASSES} classes of two images, so nothing is fitted"
    fitted = count(comparison.fitted_images, "image")
    fit = f"{fitted} of {comparison.fitted_classes} other classes (seed {comparison.seed})"
    return f"{measured}; whitened and linear are fitted on {fit}; leave-one-out, cosine, exact"


def remarks(comparison: BaselineComparison) -> list[str]:
    """Return the notes on rows (*) and intervals, and the models that were left out."""
    notes = list(dict.fromkeys(f"* {note}" for row in comparison.rows for note in row.notes))
    notes.append(f"Intervals are {ONE_SEED}.")
    notes += [f"not whitened: {', '.join(names)}: {reason}" for reason, names in _by_reason(comparison.not_whitened)]
    return notes + [f"not measured: {', '.join(names)}: {reason}" for reason, names in _by_reason(comparison.left_out)]


def _by_reason(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each reason with the names that have it."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    return list(by_reason.items())


def as_html(comparison: BaselineComparison) -> str:
    """Return the comparison as one HTML page."""
    forms = (PLAIN, WHITENED, LINEAR)
    points = [(row.milliseconds, row.metrics[CHOSEN_BY], forms.index(row.form)) for row in comparison.rows]
    drawing = trade_off(points, "ms per image (log)", "MAP@R")
    plot = Picture(drawing, SVG, "MAP@R against milliseconds per image, numbered as the rows of the table")
    sections = [
        Section("Recommendation", [Paragraph(text) for text in comparison.recommendation]),
        Section("Scores", [Paragraph(protocol(comparison)), table(comparison), *map(Paragraph, remarks(comparison))]),
        Section("Quality and time", [Legend(forms, COLOURS), plot]),
    ]
    return page(f"Models on {comparison.data}", sections)
