"""Omniglot, small sets: handwritten characters, each by 20 drawers (Lake, Salakhutdinov, Tenenbaum, Science 2015).

It is split by alphabet: train is the whole background set "small 1" (5 alphabets, 136 characters), test the alphabets
that only "small 2" has (3 alphabets, 106 characters).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import numpy as np

from zoo.data.dataset import Dataset
from zoo.data.download import PublishedFile, fetch
from zoo.data.images import ImageLike
from zoo.errors import DatasetError
from zoo.files import sha256_of
from zoo.paths import data_roots, download_cache

BASE_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
DRAWERS = 20

_TRAIN = ("Balinese", "Early_Aramaic", "Greek", "Korean", "Latin")
_TEST = ("Japanese_(katakana)", "Sanskrit", "Tagalog")
ALPHABETS = _TRAIN + _TEST
"""The factor `alphabet` is an index into these."""


@dataclass(frozen=True)
class _SplitSource:
    """Source of a split: a file, the alphabets taken from it, and the number of their characters."""

    file: PublishedFile
    alphabets: tuple[str, ...]
    characters: int

    @property
    def folder(self) -> str:
        """The name of the only folder at the top of the zip file."""
        return self.file.name.removesuffix(".zip")


SOURCES = {
    "train": _SplitSource(
        PublishedFile(
            "images_background_small1.zip",
            1319022,
            "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
        ),
        _TRAIN,
        136,
    ),
    "test": _SplitSource(
        PublishedFile(
            "images_background_small2.zip",
            1580917,
            "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f",
        ),
        _TEST,
        106,
    ),
}


def load(split: str, data: str | Path | None = None, base_url: str = BASE_URL) -> Dataset:
    """Return one split: black-on-white PNG of 105 x 105 pixels, classes "Alphabet/characterNN", sorted.

    The factors are `alphabet` (index into ALPHABETS) and `drawer` (1 to 20).

    Args:
        split: "train" or "test".
        data: The folder with the zip file or its extracted folder. By default these are looked for in `ZOO_DATA` and
            the download cache, and else downloaded into the cache.
        base_url: The address of the folder to download from.

    Raises:
        DatasetError: If the data is missing, incomplete or not as published, or the download failed.
    """
    source = SOURCES[split]
    images = _read(source, data, base_url)
    names = sorted(images)
    parts = [PurePosixPath(name).parts for name in names]
    classes = sorted({f"{alphabet}/{character}" for _, alphabet, character, _ in parts})
    index = {name: i for i, name in enumerate(classes)}
    return Dataset(
        name="omniglot",
        split=split,
        images=[images[name] for name in names],
        labels=np.array([index[f"{alphabet}/{character}"] for _, alphabet, character, _ in parts], dtype=np.int64),
        classes=tuple(classes),
        sources=names,
        factors={
            "alphabet": np.array([ALPHABETS.index(alphabet) for _, alphabet, _, _ in parts], dtype=np.int64),
            "drawer": np.array([int(Path(file).stem.rpartition("_")[2]) for *_, file in parts], dtype=np.int64),
        },
    )


def _read(source: _SplitSource, data: str | Path | None, base_url: str) -> Mapping[str, ImageLike]:
    """Return the split's images by name, `<root>/<alphabet>/<character>/<file>.png`."""
    roots = data_roots(data)
    for root in roots:
        if (root / source.file.name).is_file():
            return _from_zip(root / source.file.name, source, base_url, fetched=data is None)
        if (root / source.folder).is_dir():
            return _from_folder(root / source.folder, source, base_url)
    if data is not None:
        raise DatasetError(
            f"{data} does not hold Omniglot: expected {source.file.name} or the folder {source.folder} in it. Name the "
            "folder that does. Without --data it is read from ZOO_DATA or downloaded from "
            f"{_address(source.file, base_url)}.",
            code="dataset-missing",
        )
    return _from_zip(_download(source.file, roots, base_url), source, base_url, fetched=True)


def _address(file: PublishedFile, base_url: str) -> str:
    return f"{base_url}/{file.name}"


def _download(file: PublishedFile, roots: Sequence[Path], base_url: str) -> Path:
    url = _address(file, base_url)
    try:
        return fetch(file, url, download_cache())
    except DatasetError as error:
        raise DatasetError(
            f"Omniglot's {file.name} is in none of {', '.join(map(str, roots))}, and fetching it failed: {error} "
            f"Get it from {url} on another machine, put it into one of these folders (or name its folder with --data), "
            "and run again.",
            code=error.code,
        ) from None


def _from_zip(path: Path, source: _SplitSource, base_url: str, fetched: bool) -> dict[str, ImageLike]:
    """Read the images of a zip file; `fetched` tells whether a missing one is downloaded."""
    sha256 = sha256_of(path)
    if sha256 != source.file.sha256:
        url = _address(source.file, base_url)
        advice = (
            f"Delete it, and it will be downloaded again from {url}."
            if fetched
            else f"Get it from {url} and put it in its place; nothing is downloaded into a folder given by --data."
        )
        raise DatasetError(
            f"{path} is not the published {source.file.name}: its sha256 is {sha256}, expected {source.file.sha256}. "
            f"{advice}",
            code="hash-mismatch",
        )
    # Images have a few hundred bytes: all of them are read at once, so that no open file is shared between threads.
    with ZipFile(path) as archive:
        images = {name: archive.read(name) for name in archive.namelist() if _belongs(name, source)}
    return _complete(images, source, path, base_url)


def _from_folder(folder: Path, source: _SplitSource, base_url: str) -> dict[str, ImageLike]:
    files = {f"{source.folder}/{path.relative_to(folder).as_posix()}": path for path in folder.glob("*/*/*.png")}
    return _complete({name: path for name, path in files.items() if _belongs(name, source)}, source, folder, base_url)


def _belongs(name: str, source: _SplitSource) -> bool:
    """Return whether a file is an image of one of the split's alphabets."""
    parts = PurePosixPath(name).parts
    return (
        len(parts) == 4
        and parts[1] in source.alphabets
        and re.fullmatch(r"character\d\d", parts[2]) is not None
        and re.fullmatch(r"\d{4}_\d\d\.png", parts[3]) is not None
    )


def _complete(images: Mapping[str, ImageLike], source: _SplitSource, path: Path, base_url: str) -> dict[str, ImageLike]:
    """Return the images; raise `DatasetError` if their number is not the published one."""
    characters = len({PurePosixPath(name).parent for name in images})
    if characters != source.characters or len(images) != source.characters * DRAWERS:
        raise DatasetError(
            f"{path} holds {len(images)} images of {characters} characters of {', '.join(source.alphabets)}; "
            f"expected {source.characters * DRAWERS} of {source.characters}. Put {source.file.name} in its place; "
            f"it comes from {_address(source.file, base_url)}.",
            code="damaged-file",
        )
    return dict(images)
