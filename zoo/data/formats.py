"""Data sets in the field's formats as tables of image files: those of the library `datasets` (in memory, on disk, on
the Hub, Parquet, metadata.jsonl), webdataset's tar files, and data sets of PyTorch.

Images inside a file or in memory are written once, row by row, to `ZOO_HOME/tables`, with a table beside them that
`zoo.data.table` reads. Images that are files already stay where they are.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from zoo import paths
from zoo.data.dataset import folder_names
from zoo.data.decoder import begins_as_image
from zoo.data.images import SUFFIXES
from zoo.data.names import FileFinder
from zoo.errors import DatasetError, HubUnreachableError, UsageError, missing
from zoo.files import atomic_folder, sha256_of
from zoo.paths import expand, is_folder
from zoo.render import write_csv

TABLE = "images.csv"
DECODERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("txt", "text"), str),
}
"""Ending of a member of webdataset's tar files that is no image -> what reads its text; others are not read."""

TEXTS = {".csv": ",", ".tsv": "\t"}
"""Suffix of a table of text -> what separates its columns."""

PARTS = ("train", "test", "validation", "data")
"""Folders of a data set's splits."""

ON_DISK = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` of the library `datasets` writes; the first one for several splits."""

DESCRIBED = ("metadata.jsonl", "metadata.parquet")
"""Files that describe the images of a folder."""

LABELS = ("label", "labels", "cls", "class", "category", "fine_label")
"""Columns that are taken for the class, the first that there is."""

IMAGES = ("image", "img", "picture", "photo", "path", "image_path", "file_name", "filename", "file")
"""Names of columns of images, the likeliest first; a column of texts holds paths of images if it has one of them."""

SHARD_ROWS = 256
"""Rows of a Parquet file that are in memory at a time."""

HUB = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)|([\w.-]+/[\w.-]+)")

_KINDS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}


def hub_name(path: str | Path) -> str | None:
    """Return `org/name` of a data set on the Hub; None for a path that exists, and for other texts."""
    match = HUB.fullmatch(os.fspath(path).replace("hf:/", "hf://").replace(":///", "://"))
    if match is None or match[1]:
        return match and match[1]
    here = expand(path)
    return None if here.exists() or here.parent.exists() or here.suffix.lower() in (*TEXTS, *SHARDS) else match[2]


def is_format(path: str | Path) -> bool:
    """Return whether a path is a data set of another format than folders of classes and tables of text."""
    if hub_name(path):
        return True
    path = expand(path)
    if not is_folder(path):
        return path.suffix.lower() in SHARDS
    parts = [path, *(path / part for part in PARTS)]
    marks = [part / name for part in parts for name in DESCRIBED] + [path / name for name in ON_DISK]
    return any(mark.is_file() for mark in marks) or (any(map(_has_shards, parts)) and _only_parts(path))


def _only_parts(folder: Path) -> bool:
    """Return whether a folder has no subfolders apart from those of splits, as those of classes."""
    return all(path.name in PARTS or path.name.startswith(".") for path in folder.iterdir() if path.is_dir())


def _has_shards(folder: Path) -> bool:
    """Return whether a folder has files that hold images."""
    return folder.is_dir() and any(path.suffix.lower() in SHARDS for path in folder.iterdir())


def table_of(data: Any) -> Any:
    """Return the table of a data set in memory; a path stays unchanged.

    Args:
        data: A path; a data set of the library `datasets`; a data set of PyTorch, whose items are (image, label) or
            have the keys image and label; or a mapping of splits (train, test) to these.

    Raises:
        UsageError: If it is nothing of these, or its items are not images with labels.
    """
    if data is None or isinstance(data, str | os.PathLike):
        return data
    parts = data if isinstance(data, Mapping) else {"": data}
    if not all(hasattr(part, "__getitem__") or hasattr(part, "__iter__") for part in parts.values()):
        raise UsageError(
            f"images are a path, a data set of `datasets` or PyTorch, or a dictionary of these by split, not "
            f"{type(data).__name__}.",
            code="invalid-value",
        )
    tables = paths.home() / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=tables, prefix=".") as scratch:
        folder = Path(scratch) / "table"
        folder.mkdir()
        _write(folder, _table_rows({name: _items(part) for name, part in parts.items()}))
        target = tables / f"memory-{_content(folder)[:16]}"
        with suppress(OSError):  # an equal one exists
            folder.rename(target)
    return target / TABLE


def _content(folder: Path) -> str:
    """Return the SHA-256 of the files of a folder, with their names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def written_table(path: str | Path) -> Path:
    """Return the table of a data set on disk or on the Hub (`is_format`), which is written when it is first read.

    Raises:
        DatasetError: If it cannot be read, or holds no images.
        HubError: If the Hub does not give it.
        MissingDependencyError: If the library `datasets` is missing.
    """
    name = hub_name(path)
    source = expand(path) if name is None else Path(name.replace("/", "--"))
    version = _version(source) if name is None else _hub_version(name, source.name)
    target = paths.home() / "tables" / f"{source.name}-{version[:16]}"
    if not (target / TABLE).is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(target, durable=False) as folder, TemporaryDirectory(prefix="zoo-") as scratch:
            beside = source if source.is_dir() else source.parent
            opened = _open(source, name, scratch)
            try:
                _write(folder, _table_rows({split: _described(part, beside) for split, part in opened.items()}))
            except (ValueError, tarfile.TarError) as error:  # of JSON, numbers, Parquet or tar files
                raise DatasetError(f"{path} cannot be read: {error}", code="damaged-file") from None
    return target / TABLE


def is_written(table: Path) -> bool:
    """Return whether a table is one that this module has written, which its user does not know."""
    return table.name == TABLE and table.parent.parent == paths.home() / "tables"


def _version(path: Path) -> str:
    """Return a digest of the names, sizes and times of a data set's files."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        facts = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}.", code="not-found") from None
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _hub_version(name: str, folder: str) -> str:
    """Return the commit of a data set on the Hub; without a network that of the newest copy that was read before."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return str(HfApi().dataset_info(name, timeout=10).sha)
    except RepositoryNotFoundError:
        raise DatasetError(
            f"there is no folder or table {name} here, and the Hub has no data set of this name, or it is private (log "
            "in with: hf auth login).",
            code="not-found",
        ) from None
    except Exception as error:  # the client's errors of connections are many
        copies = sorted((paths.home() / "tables").glob(f"{folder}-*"), key=lambda copy: copy.stat().st_mtime)
        if copies:
            return copies[-1].name.removeprefix(f"{folder}-")
        raise HubUnreachableError(
            f"there is no folder or table {name} here, and the Hub cannot be asked for a data set of this name "
            f"({type(error).__name__}). Run again with a network and without HF_HUB_OFFLINE.",
            type(error).__name__,
            code="offline",
        ) from None


def _open(path: Path, hub: str | None, scratch: str) -> dict[str, Any]:
    """Return the splits of a data set, whose images are read one by one.

    The library `datasets` imports torch to stream rows, so that files are read without it, those of the Hub from the
    Hub's cache, and descriptions of images that are files already are copied to the folder `scratch`.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise missing("datasets", "datasets") from None
    try:
        if hub is None and any((path / name).is_file() for name in ON_DISK):
            opened = datasets.load_from_disk(str(path))
        elif hub is not None or path.is_dir():
            files = datasets.load_dataset_builder(hub or str(path), cache_dir=scratch).config.data_files or {}
            kinds = {PurePosixPath(file).suffix.lower() for part in files.values() for file in part}
            if len(kinds) == 1 and kinds <= SHARDS.keys():
                kind = SHARDS[kinds.pop()]
                opened = {str(split): kind(list(map(_fetched, part))) for split, part in files.items()}
            else:
                folder = path if hub is None else _fetched_folder(hub)
                with _without_progress():
                    opened = datasets.load_dataset(str(folder), cache_dir=scratch)
        else:
            opened = SHARDS[path.suffix.lower()]([path])
    except Exception as error:  # each format has errors of its own
        raise DatasetError(
            f"{hub or path} cannot be read by the library datasets: {error}", code="damaged-file"
        ) from None
    parts = dict(opened) if isinstance(opened, Mapping) else {"": opened}
    return parts if len(parts) > 1 else {"": next(iter(parts.values()))}


def _fetched(file: str) -> Path:
    """Return the path of a data file; of one on the Hub that of its copy in the Hub's cache."""
    if not file.startswith("hf://"):
        return Path(file)
    from huggingface_hub import HfFileSystem, hf_hub_download

    place: Any = HfFileSystem().resolve_path(file)
    return Path(hf_hub_download(place.repo_id, place.path_in_repo, repo_type="dataset", revision=place.revision))


def _fetched_folder(name: str) -> Path:
    """Return the folder of a data set in the Hub's cache, with all its files."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, repo_type="dataset"))


@contextmanager
def _without_progress() -> Iterator[None]:
    """Let the library `datasets` draw no progress bars meanwhile."""
    import datasets

    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            datasets.enable_progress_bars()


class _Shards:
    """Rows of files, all with the columns of the first, as a data set of the library `datasets`."""

    features: Mapping[str, Any]

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.folder = files[0].parent

    def cast_column(self, name: str, kind: Any) -> Self:
        """Return the same rows: images are not decoded."""
        return self


class _Parquet(_Shards):
    """Rows of Parquet files, read in pieces."""

    def __init__(self, files: Sequence[Path]) -> None:
        import datasets
        from pyarrow import parquet

        super().__init__(files)
        self._open = parquet.ParquetFile
        with self._open(files[0]) as first:
            self.features = datasets.Features.from_arrow_schema(first.schema_arrow)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for path in self.files:
            with self._open(path) as file:
                for batch in file.iter_batches(SHARD_ROWS):
                    yield from batch.to_pylist()


class _WebDataset(_Shards):
    """Samples of webdataset's tar files: members that follow one another with one name up to the first dot.

    The first image of a sample is its column `image`.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        import datasets

        super().__init__(files)
        self.features = {**next(iter(self), {}), "image": datasets.Image()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for path in self.files:
            with tarfile.open(path, "r|") as tar:
                for _, members in groupby(_members(tar), key=lambda member: member[0]):
                    sample: dict[str, Any] = {"image": None}
                    for key, name, data in members:
                        if not _is_image(name):
                            sample[name] = DECODERS[name.rpartition(".")[2]](data.decode("utf-8"))
                        elif sample["image"] is None:
                            sample["image"] = {"path": f"{key}.{name}", "bytes": data}
                    yield sample


def _is_image(name: str) -> bool:
    return f".{name.rpartition('.')[2]}" in SUFFIXES


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    """Yield the key, the rest of the name and the content of those members of a tar file that are read."""
    for member in tar:
        folder, slash, file = member.name.rpartition("/")
        key, _, name = file.partition(".")
        name = name.lower()
        is_read = key and (_is_image(name) or name.rpartition(".")[2] in DECODERS)
        if member.isfile() and not member.issparse() and is_read and (stream := tar.extractfile(member)):
            yield f"{folder}{slash}{key}", name, stream.read()


SHARDS = {".parquet": _Parquet, ".tar": _WebDataset}
"""Suffix of a file that holds images -> its rows."""


def _items(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set in memory."""
    if hasattr(part, "features") and hasattr(part, "cast_column"):
        yield from _described(part, Path())
        return
    names = getattr(part, "classes", None)
    for number, item in enumerate(part if hasattr(part, "__iter__") else (part[i] for i in range(len(part)))):
        pair = item if isinstance(item, tuple | list) else ()
        row = dict(item) if isinstance(item, Mapping) else dict(zip(("image", "label"), pair, strict=False))
        image, label = row.get("image", row.get("input_tensors")), row.get("label", row.get("labels"))
        if image is None or label is None:
            raise UsageError(
                f"item {number} of {type(part).__name__} is not an image with its label: give (image, label), or a "
                "dictionary with the keys image and label.",
                code="invalid-table",
            )
        known = names is not None and not isinstance(label, str)
        yield {"image": _encoded(image, number), "label": names[int(label)] if known else label}  # type: ignore[index]


def _encoded(image: Any, number: int) -> dict[str, Any]:
    """Return an image of a data set in memory, as `datasets` has it: its bytes or its path."""
    from PIL import Image

    from zoo.data.images import open_image

    if isinstance(image, str | os.PathLike):
        return {"path": os.path.abspath(image), "bytes": None}  # noqa: PTH100
    if isinstance(image, bytes):
        return {"path": None, "bytes": image}
    if not isinstance(image, np.ndarray | Image.Image):
        kind = f"{type(image).__name__} of {getattr(image, 'dtype', '')}".removesuffix(" of ")
        raise UsageError(
            f"item {number} is a {kind}, and models prepare images themselves: give PIL images, uint8 arrays or paths, "
            "without a transform.",
            code="unreadable-image",
        )
    stream = io.BytesIO()
    open_image(image).save(stream, "PNG")
    return {"path": None, "bytes": stream.getvalue()}


def _described(part: Any, beside: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set of the library `datasets`: image (bytes or path), label as text, further columns.

    Args:
        part: The data set, or the rows of files.
        beside: The folder that paths of images are relative to, unless the rows come from files in another one.
    """
    import datasets

    features = part.features
    if features is None:
        raise DatasetError("the data set does not say what its columns are.", code="invalid-table")
    image = _image_column(part)
    if isinstance(features[image], datasets.Image):
        part = part.cast_column(image, datasets.Image(decode=False))
    others = {name for name, kind in features.items() if _holds_images(kind)} | {image, "__key__", "__url__"}
    inner = features.get("json")
    label = next((name for name in LABELS if name in features), None)
    if label is None and isinstance(inner, dict):
        label = next((name for name in LABELS if name in inner), None)
    names = getattr(features.get(label), "names", None)
    beside = getattr(part, "folder", beside)
    for row in part:
        values = {key: value for key, value in row.items() if key not in others}
        if isinstance(values.get("json"), dict):
            values |= values.pop("json")
        text = values.pop(label, None) if label else None
        if names is not None and isinstance(text, int) and text >= 0:
            text = names[text]
        yield {"image": _image_of(row[image], beside), **values, "label": text}


def _image_of(cell: Any, beside: Path) -> dict[str, Any]:
    """Return a cell of a column of images as bytes with the name of their file, or as the path of a file."""
    if isinstance(cell, bytes):
        return {"path": None, "bytes": cell}
    if isinstance(cell, str):
        cell = {"path": cell}
    if not cell or cell.get("bytes") or not cell.get("path"):
        return cell or {}
    return {"path": str(FileFinder().find(beside, cell["path"])), "bytes": None}


def _image_column(part: Any) -> str:
    """Return the column of a data set of the library `datasets` that holds the images.

    It is a column of the type Image; else one of bytes, or of bytes with paths, by its name or as its first cell is an
    image; else one of texts, which are paths, by its name. Of several it is the first in the order of `IMAGES`.
    """
    import datasets

    def ordered(names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: IMAGES.index(name) if name in IMAGES else len(IMAGES))

    features = part.features
    typed = ordered(name for name, kind in features.items() if isinstance(kind, datasets.Image))
    stored = ordered(name for name, kind in features.items() if _holds_images(kind))
    texts = ordered(name for name, kind in features.items() if name in IMAGES and _is_of(kind, "string"))
    row: Mapping[str, Any] = next(iter(part), {}) if stored and not typed else {}
    stored = [name for name in stored if name in IMAGES or _shows_image(row.get(name))]
    if column := next(iter((*typed, *stored, *texts)), None):
        return column
    kinds = ", ".join(f"{name} ({_kind_text(kind)})" for name, kind in features.items())
    raise UsageError(
        f"the data set has no column of images; it has: {kinds or 'nothing'}. A column of images holds their files as "
        "bytes, as a struct of bytes and path, or as the type Image of `datasets`; or it holds paths as texts and has "
        f"one of the names {', '.join(IMAGES)}. Rename or convert the column.",
        code="invalid-table",
    )


def _is_of(kind: Any, *types: str) -> bool:
    """Return whether values of a column are of one of some types of Arrow, large or not."""
    return str(getattr(kind, "dtype", "")).removeprefix("large_").removesuffix("_view") in types


def _holds_images(kind: Any) -> bool:
    """Return whether a column is of a type that can hold images themselves: Image, bytes, or a struct with bytes."""
    import datasets

    if isinstance(kind, dict):
        return kind.keys() <= {"bytes", "path"} and all(_is_of(kind[key], "binary", "string", "null") for key in kind)
    return isinstance(kind, datasets.Image) or _is_of(kind, "binary")


def _shows_image(cell: Any) -> bool:
    """Return whether a cell of a column that can hold images begins as a file of an image."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    return isinstance(data, bytes) and begins_as_image(data)


def _kind_text(kind: Any) -> str:
    """Return the type of a column in a message."""
    if isinstance(kind, dict):
        return f"struct of {', '.join(kind)}"
    return str(getattr(kind, "dtype", None) or type(kind).__name__)


def _table_rows(parts: Mapping[str, Iterable[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for split, rows in parts.items():
        for row in rows:
            yield {**row, "split": split} if split else row


def _write(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a table and those images that are inside a file or in memory; each row has its image as bytes or path."""
    columns: dict[str, None] = {"image": None, "label": None}
    taken: set[str] = set()
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            image = row["image"] or {}
            name = _stored(folder, row, image, number, taken) if image.get("bytes") else _place(image, number)
            cells = {**{key: _cell(value) for key, value in row.items()}, "image": name}
            columns.update(dict.fromkeys(cells))
            file.write(json.dumps(cells) + "\n")
    table = folder / TABLE
    with (folder / "rows.jsonl").open(encoding="utf-8") as file, table.open("w", encoding="utf-8", newline="") as out:
        write_csv(out, [tuple(columns)])
        write_csv(out, ([cells.get(column, "") for column in columns] for cells in map(json.loads, file)))
    (folder / "rows.jsonl").unlink()


def _place(image: Mapping[str, Any], number: int) -> str:
    """Return the full path of an image that is a file already."""
    if not image.get("path"):
        raise DatasetError(f"row {number + 1} of the data set has no image.", code="invalid-table")
    return os.path.abspath(image["path"])  # noqa: PTH100


def _stored(folder: Path, row: Mapping[str, Any], image: Mapping[str, Any], number: int, taken: set[str]) -> str:
    """Write an image and return its name below the folder: split/class/name, as in a folder of classes."""
    data: bytes = image["bytes"]
    kind = next((suffix for start, suffix in _KINDS.items() if data.startswith(start)), ".img")
    name = PurePosixPath(image.get("path") or f"{number:06d}{kind}").name
    label = "" if row.get("label") is None else str(row["label"])
    parts = [str(row.get("split") or ""), label if _is_place(label) else folder_names([label])[0], name]
    place = "/".join(part for part in parts if part)
    if place.casefold() in taken:
        place = str(PurePosixPath(place).with_name(f"{number:06d}-{name}"))
    taken.add(place.casefold())
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return place


def _is_place(label: str) -> bool:
    """Return whether a label can be the name of a folder unchanged."""
    return bool(label) and not any(part in ("", ".", "..") for part in label.split("/")) and label.isprintable()


def _cell(value: Any) -> Any:
    """Return a value as the cell of a table: lists and dictionaries as JSON, None as an empty cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of torch
        return value.item()
    return json.dumps(value, default=str)
