"""Measurements in a model folder: results.json and onnx/parity.json, and the tolerances between its variants."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from zoo.console import count, interval_text
from zoo.data.content import IdenticalPairs
from zoo.data.dataset import FOLDER, DataIdentity, dataset_title
from zoo.errors import ModelFolderError, command
from zoo.files import locked, read_json, read_object, write_json
from zoo.models.card import Card, setting_text
from zoo.render import Table

EXPORT_FLOORS = {"fp32": 0.99999, "fp16": 0.9999, "int8": 0.95}
"""Least cosine between the embeddings of a new graph and those of torch on the same machine (`zoo export`).

fp32: the same arithmetic in another order; 0.99999 is an angle of 0.26 degrees, far above rounding.
fp16: each result is rounded to 11 bits, 0.05 %; over fifty layers this adds up to about 0.4 %, a cosine of 0.99999.
Deep or badly scaled networks get ten times that squared loss: 0.9999.
int8: 256 steps over a range that few values fill: some 0.7 % per layer, 5 % after fifty, 0.999. Images with values
outside the calibrated range are worse, hence 0.95. `zoo export` also measures the cost of int8 in retrieval.
"""

RESIZE_FLOOR = 0.99
"""Least cosine between a graph that resizes and the same graph after Pillow's resizing.

A step of 1 in 255 is 0.4 %, which int8 may turn into some 2 %.
"""

GOLDEN_FLOORS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.95, "int8": 0.95}
"""Least cosine between a variant's embeddings and the golden ones of the model folder (`zoo verify`, /readyz).

Golden embeddings come from another machine and other versions of the libraries, which also decoded and resized the
images: ten times the squared loss of `EXPORT_FLOORS` is allowed. int8's floor leaves room for this already. bf16 rounds
eight times as coarsely as fp16, which makes 64 times its squared loss: 0.99936 where fp16 gives 0.99999, and ten times
that in badly scaled networks.
"""

GOLDEN_RESIZE_FLOORS = {"fp32": 0.99, "fp16": 0.99, "int8": 0.9}
"""Least cosine between a resizing graph's embeddings and the golden ones.

The angles of `RESIZE_FLOOR` (8 degrees) and of `GOLDEN_FLOORS` add up at worst, which matters only for int8: 8 and 18
degrees are a cosine of 0.9.
"""

PARITY_FILE = "onnx/parity.json"

COST_TARGET = 0.002
"""Largest allowed loss of R@1 and MAP@R by a precision: 0.2 points."""

COST_METRICS = ("recall_at_1", "map_at_r")

ROUNDING = 1e-6
"""Tolerance for a difference of two numbers in the file."""


def read_parity(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of onnx/parity.json by variant; none without the file.

    Raises:
        ModelFolderError: `damaged-file` for a damaged file.
    """
    path = folder / PARITY_FILE
    entries = _read_record(path, {})
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise damaged_record(path, "expected an object of objects")
    return entries


def _read_record(path: Path, empty: Any) -> Any:
    """Return what a JSON file holds, or `empty` without the file."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return empty
    except (OSError, ValueError) as error:
        raise damaged_record(path, error) from None


def damaged_record(path: Path, why: object) -> ModelFolderError:
    """Return the error for measurements that neither `zoo evaluate` nor `zoo export` wrote."""
    return ModelFolderError(
        f"{path} is damaged: {why}. Delete it and measure (zoo evaluate MODEL --save) or export (zoo export MODEL) "
        "again, or download the model folder again.",
        code="damaged-file",
    )


def entry_mismatch(entry: Mapping[str, Any], variant: str, card: Card) -> str:
    """Return why an entry of onnx/parity.json, with its key, does not describe a graph of this model; "" if it does."""
    if entry.get("variant", variant) != variant:
        return f"describes the variant {entry['variant']}"
    return "" if entry.get("fingerprint") == card.fingerprint else "describes a graph of another model"


def cost_verdict(interval: Sequence[float]) -> str:
    """Compare an interval of a change with `COST_TARGET`.

    Returns:
        "met" if the loss is at most the target, "missed" if it is greater, "undecided" if the interval holds both.
    """
    low, high = interval
    if low >= -COST_TARGET:
        return "met"
    return "missed" if high < -COST_TARGET else "undecided"


def contradictions(entry: Mapping[str, Any], precision: str) -> list[str]:
    """Return the statements of a precision's entry that its own numbers contradict, as text.

    Raises:
        KeyError: If the entry has another shape; likewise `TypeError` and `ValueError`.
    """
    problems = []
    if entry.get("holds") is True and not float(entry["min_cosine"]) >= EXPORT_FLOORS[precision]:
        cosine = float(entry["min_cosine"])
        problems.append(f"it says that a cosine of {cosine:.6f} holds, the floor is {EXPORT_FLOORS[precision]}")
    for metric in COST_METRICS:
        if row := (entry.get("cost") or {}).get(metric):
            problems += [f"{metric}: {problem}" for problem in _cost_problems(row, precision)]
    return problems


def _cost_problems(row: Mapping[str, Any], precision: str) -> Iterator[str]:
    change = float(row["difference"])
    if not abs(float(row[precision]) - float(row["fp32"]) - change) <= ROUNDING:
        yield f"{change:+.4f} is not the difference of {float(row[precision]):.4f} and {float(row['fp32']):.4f}"
    yield from _interval_problems(row, change)
    if over_queries := row.get("over_queries"):
        yield from (f"over queries: {problem}" for problem in _interval_problems(over_queries, change))


def _interval_problems(row: Mapping[str, Any], change: float) -> Iterator[str]:
    low, high = map(float, row["interval"])
    if not low - ROUNDING <= change <= high + ROUNDING:
        yield f"{change:+.4f} is outside its interval of {interval_text((low, high), '+')}"
    if row["within_target"] is not (low >= -COST_TARGET):
        yield f"within_target is {row['within_target']}, and the interval begins at {low:+.4f}"


RESULTS_FILE = "results.json"

CONDITIONS = ("dataset", "split", "protocol", "runtime", "precision")
"""Keys that two measurements share, in addition to their images, if one replaces the other."""

MADE = "made"
"""Key of a measurement in results.json: how the measured model was made (`training_facts`)."""

NOT_RECORDED = "not recorded when the model was made"

FEW_CLASSES = 10
"""Below this number of classes, an interval over classes is too narrow: two or three classes do not show how much
classes differ."""


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Measurement of a model or of embeddings: inputs, settings and scores.

    Attributes:
        model: Name of the model; None if the embeddings' model is not known, as for `runtime` and `precision`.
        queries: Number of queries, including those without relatives, which the metrics leave out.
        classes: Number of classes of the measured queries.
        metrics: Means over queries, as fractions, and the metrics of further groups (keys: `zoo.evaluation`).
        intervals: Metric -> (low, high), 95 %, over classes; empty below two classes.
        date: ISO 8601, UTC.
        versions: Library -> version.
        unreadable: Number of images that could not be read and were left out.
        fingerprint: `Card.fingerprint` of the model.
        data: The identity of the measured images.
        class_scores: `zoo.evaluation.statistics.class_scores` of R@1 and MAP@R, by which models are compared later. As
            JSON each is one text of numbers, which takes one line of a file.
        identical: Numbers of byte-identical pairs of a user's own images; None where they are not counted.
        whitened_classes: Number of measured classes of which the model was whitened on images; None where no whitening
            records its images.
        learnt_classes: Number of measured classes that the model was trained on; None where it is not counted.
    """

    model: str | None
    dataset: str | None
    split: str | None
    protocol: str
    runtime: str | None
    precision: str | None
    dim: int
    queries: int
    queries_without_relatives: int
    classes: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    unreadable: int = 0
    fingerprint: str | None = None
    data: DataIdentity | None = None
    identical: IdenticalPairs | None = None
    class_scores: Mapping[str, tuple[float, ...]] | None = None
    whitened_classes: int | None = None
    learnt_classes: int | None = None

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items() if name in COST_METRICS)
        return f"Evaluation({self._subject}: {scores})"

    def _repr_html_(self) -> str:
        """Return the scores as a table, for notebooks."""
        caption = f"{self._subject}; {origin_text(self.to_json())}"
        return metric_table(self.metrics, self.intervals).html(caption)

    @property
    def _subject(self) -> str:
        return f"{self.model or 'embeddings'} on {data_title(self.to_json())}"

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        if self.class_scores is not None:
            texts = {name: " ".join(f"{score:.6g}" for score in scores) for name, scores in self.class_scores.items()}
            values["class_scores"] = texts
        values["intervals"] = {name: list(bounds) for name, bounds in self.intervals.items()}
        return values


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the measurements in a model folder, oldest first; none without results.json.

    Raises:
        ModelFolderError: `damaged-file` for a file that `add_result` did not write.
    """
    path = folder / RESULTS_FILE
    results: Any = _read_record(path, [])
    if not isinstance(results, list):
        raise damaged_record(path, "expected a list of measurements")
    for number, result in enumerate(results):
        if not _is_result(result):
            raise damaged_record(path, f"entry {number} is not a measurement")
    return results


def add_result(folder: Path, evaluation: Evaluation) -> None:
    """Add a measurement to the folder's results.json, in place of an earlier one of the same kind.

    Several processes may do so at once. Any writable folder is accepted, also in the Hub's cache or among the shipped
    models; there the next download or upgrade may drop the measurement.
    """
    new = evaluation.to_json()
    with locked(folder):
        other_results = [old for old in read_results(folder) if not _replaces(new, old)]
        write_json(folder / RESULTS_FILE, [*other_results, new])


def training_facts(folder: Path) -> dict[str, Any]:
    """Return how a model folder was made, from its recipe.json: what a repetition needs.

    Returns:
        `command`, `commit`, `versions`, `processor`, `seconds` and `seeds`; a fact that was not recorded is null, and
        `missing` says why.
    """
    record = read_object(folder / "recipe.json")
    recipe, hardware = record.get("recipe"), record.get("hardware")
    seed = recipe.get("seed") if isinstance(recipe, dict) else None
    facts = {
        "command": _training_command(record, seed),
        "commit": record.get("commit"),
        "versions": record.get("versions"),
        "processor": _processor(hardware) if isinstance(hardware, dict) else None,
        "seconds": record.get("seconds"),
        "seeds": None if seed is None else [seed],
    }
    missing = {name: NOT_RECORDED for name, value in facts.items() if value is None}
    return {**facts, "missing": missing}


def record_training(folder: Path, made_by: str | None = None) -> None:
    """Write the `training_facts` into every measurement of a model folder, as `made`.

    made_by: the command that made the model, if recipe.json does not record it.
    """
    made = training_facts(folder)
    if made_by is not None:
        made["command"] = made_by
        made["missing"].pop("command", None)
    with locked(folder):
        write_json(folder / RESULTS_FILE, [{**result, MADE: made} for result in read_results(folder)])


def _training_command(record: Mapping[str, Any], seed: Any) -> str | None:
    """Return the command that trained a model; None if it does not follow a recipe."""
    origin, settings = record.get("origin"), record.get("settings")
    if not isinstance(origin, str) or not isinstance(settings, dict):
        return None
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={setting_text(value)}")]
    return command("train", origin, *changes, *(["--seed", str(seed)] if seed else []))


def _processor(hardware: Mapping[str, Any]) -> str:
    cores = hardware.get("cores")
    parts = [str(hardware.get("cpu") or hardware.get("machine")), count(cores, "core") if cores else ""]
    return ", ".join(filter(None, (*parts, hardware.get("cuda"))))


def _replaces(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether a measurement is the older one made again: same conditions, images and model."""
    same_model = old.get("fingerprint") == new["fingerprint"]
    return same_model and all(old[key] == new[key] for key in CONDITIONS) and same_images(new, old)


def same_images(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two measurements, as in results.json, are known to be of the same images.

    Images that are not recorded equal none.
    """
    return bool(a.get("data") and b.get("data") and a["data"]["sha256"] == b["data"]["sha256"])


def read_class_scores(result: Mapping[str, Any]) -> dict[str, tuple[float, ...]] | None:
    """Return the scores by class of a measurement, as in results.json; None if it has none, or damaged ones."""
    texts = result.get("class_scores")
    if not isinstance(texts, dict):
        return None
    try:
        scores = {name: tuple(map(float, text.split())) for name, text in texts.items()}
    except (AttributeError, ValueError):
        return None
    return scores if len({len(numbers) for numbers in scores.values()}) == 1 else None


def metric_table(metrics: Mapping[str, float], intervals: Mapping[str, Sequence[float]]) -> Table:
    """Return the table of scores with their 95 % intervals over classes; not every metric needs one."""
    rows = [[name, f"{value:.4f}", interval_text(intervals.get(name)) or "-"] for name, value in metrics.items()]
    return Table(("metric", "value", "95 % over classes"), rows, ("value",))


def data_title(result: Mapping[str, Any]) -> str:
    """Return the name and short hash of the images of a measurement: "birds.csv (3f2a91c0)".

    Of embeddings without a data set only the labels are known: their hash does not say which images they are.
    """
    if data := result.get("data"):
        identity = DataIdentity(**data)
        labels_alone = result.get("dataset", "") is None
        return f"{identity.name} (labels {identity.sha256[:8]})" if labels_alone else str(identity)
    if result["dataset"] is None:
        return "unnamed embeddings"
    unknown = "data unknown" if result["dataset"] == FOLDER else "images not recorded"
    return f"{dataset_title(result['dataset'])} ({unknown})"


def origin_text(result: Mapping[str, Any]) -> str:
    """Return how a measurement came about: queries, classes, protocol, model and date, and a warning of few classes."""
    classes, fingerprint = result.get("classes"), result.get("fingerprint")
    queries = None if result.get("queries") is None else result["queries"] - result.get("queries_without_relatives", 0)
    parts = [
        f"{queries:,} queries of {classes:,} classes" if queries and classes else "",
        result["protocol"],
        f"model {fingerprint[:8]}" if fingerprint else "model not recorded",
        result.get("date", "date unknown"),
        few_classes_note(classes),
        flattery_note(result),
    ]
    return "; ".join(filter(None, parts))


def flattery_note(result: Mapping[str, Any]) -> str:
    """Return a note if the measured model was trained or whitened on measured classes; otherwise nothing."""
    learnt, whitened = result.get("learnt_classes"), result.get("whitened_classes")
    notes = [f"trained on {learnt} of these classes, which flatters it"] if learnt else []
    notes += [f"whitened on images of {whitened} of these classes, which flatters it"] if whitened else []
    return "; ".join(notes)


def few_classes_note(classes: int | None) -> str:
    """Return a warning about an interval over few classes; "" for enough of them, or an unknown number."""
    if not classes or classes >= FEW_CLASSES:
        return ""
    return f"only {count(classes, 'class')}, so others may differ by more than intervals say"


def _is_result(value: Any) -> bool:
    """Return whether a JSON value has the keys of `CONDITIONS` as text, and metrics and bounds that are numbers."""
    if not isinstance(value, dict) or not all(key in value for key in CONDITIONS):
        return False
    if not isinstance(value["protocol"], str) or not all(isinstance(value[key], str | None) for key in CONDITIONS):
        return False
    if value.get("data") is not None and not _is_identity(value["data"]):
        return False
    metrics, intervals = value.get("metrics"), value.get("intervals", {})
    if not isinstance(metrics, dict) or not isinstance(intervals, dict):
        return False
    pairs = all(isinstance(bounds, list) and len(bounds) == 2 for bounds in intervals.values())
    return pairs and all(map(_is_number, chain(metrics.values(), *intervals.values())))


def _is_identity(value: Any) -> bool:
    """Return whether a JSON value is a `DataIdentity`."""
    if not isinstance(value, dict) or value.keys() != {field.name for field in dataclasses.fields(DataIdentity)}:
        return False
    texts = isinstance(value["name"], str) and isinstance(value["sha256"], str)
    return texts and bool(_SHA256.fullmatch(value["sha256"])) and all(type(value[n]) is int for n in _COUNTS)


_SHA256, _COUNTS = re.compile("[0-9a-f]{64}"), ("images", "classes")


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, also as a float: whole numbers of JSON may exceed any float."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class Check:
    """One check of a model folder, as `zoo verify` reports it.

    Attributes:
        ok: None if the check could not be made on this machine.
        cosine: Least cosine to the golden embeddings, if the check compares with them.
        unsuited: True if only torch's half precision fails, which does not suit the network; the folder is sound.
    """

    name: str
    ok: bool | None
    detail: str
    cosine: float | None = None
    unsuited: bool = False

    @property
    def fails(self) -> bool:
        """Return whether the folder contradicts its card; an unsuited half precision is reported but does not fail."""
        return self.ok is False and not self.unsuited

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fails": self.fails}
