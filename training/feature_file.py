"""Features of a frozen trunk in a file: of every image of a data set, and of augmented views of each image.

One safetensors file: `plain` [n, f] and `views` [v, n, f], float16 or float32, `labels` int64 [n], `names` (JSON as
bytes: the classes' names and the images' sources) and some undecoded images for a golden check; what made them is in
the metadata. Reading maps the file into memory, so that it may be larger than that.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from zoo.errors import UsageError
from zoo.files import atomic_path
from zoo.models.card import Card

KIND, SCHEMA = "dml-zoo features", 1
DTYPES: dict[str, np.dtype] = {
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
FLOATS = ("float16", "float32")


@dataclass(frozen=True)
class FeatureOrigin:
    """What made the features: the model (name or folder) and its card's fingerprint, the split of a data set,
    preprocessing, the augmentation of the views with its seed, date (ISO 8601, UTC) and versions of libraries."""

    model: str
    fingerprint: str
    dataset: str
    split: str
    preprocessing: Mapping[str, Any]
    augmentation: Mapping[str, Any]
    seed: int
    date: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Features:
    """plain: pooled features [n, f] of the images as tests see them; views: [v, n, f] of random views of each.

    Both float16 or float32 and memory-mapped. labels: int64 [n], indices into `classes`. sources: where the images
    come from. golden: a few images, uint8 [H, W, 3].
    """

    path: Path
    about: FeatureOrigin
    plain: np.ndarray
    views: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    sources: Sequence[str]
    golden: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.labels)

    def check_model(self, card: Card) -> None:
        """Raise `UsageError` unless the card's model is the one that made these features."""
        if card.fingerprint != self.about.fingerprint:
            raise UsageError(
                f"{self.path} holds features of {self.about.model} (fingerprint {self.about.fingerprint[:12]}), not of "
                f"{card.name} (fingerprint {card.fingerprint[:12]}): its weights or preprocessing are others. Make the "
                f"features again: zoo features {card.name} ..."
            )


class FeatureLabels(NamedTuple):
    """Whose features they are: labels int64 [n], names of classes, sources [n], and golden images."""

    labels: np.ndarray
    classes: Sequence[str]
    sources: Sequence[str]
    golden: Sequence[np.ndarray]


@contextmanager
def writing_features(
    path: Path, about: FeatureOrigin, subject: FeatureLabels, shape: tuple[int, int], dtype: str = "float16"
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Memory-mapped arrays plain [n, f] and views [v, n, f] to fill, shape (v, f); the file is whole or not there.

    Raises `UsageError` for another dtype than float16 and float32, and for values that it cannot hold.
    """
    if dtype not in FLOATS:
        raise UsageError(f"features are kept as {' or '.join(FLOATS)}, not {dtype!r}.")
    (count, dim), n = shape, len(subject.labels)
    names = json.dumps({"classes": list(subject.classes), "sources": list(subject.sources)}).encode()
    filled: dict[str, np.ndarray] = {"labels": subject.labels.astype(np.int64), "names": np.frombuffer(names, np.uint8)}
    filled |= {f"golden_{i}": image for i, image in enumerate(subject.golden)}
    wanted = {"plain": (n, dim), "views": (count, n, dim)}
    header, places = _layout({name: (a.dtype, a.shape) for name, a in filled.items()}, wanted, np.dtype(dtype), about)
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            file.write(header)
            # A full disk says so now, and not by a signal when a page is written.
            os.posix_fallocate(file.fileno(), 0, max(place.end for place in places.values()))
        for name, array in filled.items():
            _map(temporary, places[name], "r+")[...] = array
        plain, views = (_map(temporary, places[name], "r+") for name in wanted)
        yield plain, views
        for array in (plain, *views):
            _check_finite(array, dtype)
        for array in (plain, views):
            if isinstance(array, np.memmap):
                array.flush()


def read_features(path: str | Path) -> Features:
    """The features in a file, memory-mapped. Raises `UsageError` where it is none, damaged or of a newer schema."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no file {path}. Make it with: zoo features MODEL DIR -o {path}")
    about = _about(path)
    try:
        places = _places(path)
        arrays = {name: _map(path, place, "r") for name, place in places.items()}
        names = json.loads(arrays["names"].tobytes())
        golden = [np.array(arrays[f"golden_{i}"]) for i in range(sum(name.startswith("golden_") for name in arrays))]
        found = Features(
            path,
            about,
            arrays["plain"],
            arrays["views"],
            np.array(arrays["labels"]),
            tuple(names["classes"]),
            names["sources"],
            golden,
        )
        _check_parts(found)
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} does not hold what `zoo features` writes ({error}). Make it again.") from None


def _check_parts(found: Features) -> None:
    """Raise `ValueError` unless all arrays are of the same images and every label is a class."""
    labels, plain, views = found.labels, found.plain, found.views
    if labels.ndim != 1 or labels.dtype != np.int64 or not len(labels):
        raise ValueError(f"labels are {labels.dtype} {list(labels.shape)}")
    if plain.ndim != 2 or views.ndim != 3 or plain.shape != views.shape[1:] or len(plain) != len(labels):
        raise ValueError(f"plain {list(plain.shape)}, views {list(views.shape)}, {len(labels)} labels")
    if {plain.dtype.name, views.dtype.name} - {*FLOATS}:
        raise ValueError(f"plain is {plain.dtype}, views {views.dtype}")
    if not isinstance(found.sources, list) or len(found.sources) != len(labels):
        raise ValueError(f"{len(found.sources)} sources, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= len(found.classes):
        raise ValueError(f"labels from {labels.min()} to {labels.max()}, {len(found.classes)} classes")


class _Place(NamedTuple):
    """Where an array lies in the file, in bytes from its beginning."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def _layout(
    filled: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    wanted: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
    about: FeatureOrigin,
) -> tuple[bytes, dict[str, _Place]]:
    """The file's header and the places of its arrays, the widest numbers first, so that each is aligned."""
    kinds = dict(filled) | {name: (dtype, shape) for name, shape in wanted.items()}
    tree: dict[str, Any] = {"__metadata__": {"kind": KIND, "schema": str(SCHEMA), "about": _to_json(about)}}
    position = 0
    for name, (kind, shape) in sorted(kinds.items(), key=lambda item: -item[1][0].itemsize):
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        tree[name] = {"dtype": CODES[kind], "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(tree).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, _from_header(tree, 8 + len(text))


def _places(path: Path) -> dict[str, _Place]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return _from_header(json.loads(file.read(length)), 8 + length)


def _from_header(tree: Mapping[str, Any], start: int) -> dict[str, _Place]:
    return {
        name: _Place(DTYPES[entry["dtype"]], tuple(entry["shape"]), *(start + o for o in entry["data_offsets"]))
        for name, entry in tree.items()
        if name != "__metadata__"
    }


def _map(path: Path, place: _Place, mode: Any) -> np.ndarray:
    if place.begin == place.end:  # nothing can be mapped
        return np.empty(place.shape, place.dtype)
    return np.memmap(path, place.dtype, mode, place.begin, place.shape)


def _about(path: Path) -> FeatureOrigin:
    try:
        # safetensors checks the header against the file's length.
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
    except Exception as error:  # of its own type
        raise UsageError(f"{path} cannot be read as safetensors: {error}. Make it again.") from None
    if metadata.get("kind") != KIND:
        raise UsageError(f"{path} holds no features. Make some with: zoo features MODEL DIR -o FILE")
    if not metadata.get("schema", "").isdigit() or int(metadata["schema"]) > SCHEMA:
        raise UsageError(
            f"{path} has schema {metadata.get('schema')}; this version of dml-zoo reads up to {SCHEMA}. "
            "Upgrade: pip install -U dml-zoo"
        )
    try:
        return FeatureOrigin(**json.loads(metadata["about"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} does not say what made it ({error}). Make it again.") from None


def _to_json(about: FeatureOrigin) -> str:
    return json.dumps(dataclasses.asdict(about))


def _check_finite(array: np.ndarray, dtype: str) -> None:
    """Row by row: all of a large file at once would not fit."""
    for start in range(0, len(array), 4096):
        if not np.isfinite(array[start : start + 4096]).all():
            more = " They go past what float16 holds; keep them as float32." if dtype == "float16" else ""
            raise UsageError(f"the model gives features that are no finite numbers.{more}")
