"""CUB-200 of 2010 and the training half of Cars196: photographs of birds and cars, split by class in two halves.

They are neither CUB-200-2011 nor Cars196, whose published scores say nothing about them. Packs hold square crops around
the bird and crops of the car, of about 160 pixels. CUB-200 of 2010 is also read in its authors' layout, with whole
photographs. Crops and whole photographs have different sources, hence different identities, and are never compared.

Known flaws of the packs: 1,647 birds have a black border where the square leaves the photograph. Eleven byte-identical
pairs of cars have two labels, so that perfect recall is impossible.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from zoo.data.dataset import Dataset
from zoo.data.images import open_image
from zoo.data.official import Counts, Listing, OfficialDataset, folder_titles, listed_dataset, read_rows
from zoo.errors import DatasetError, ImageError
from zoo.files import sha256_of
from zoo.paths import data_roots

_IMAGE = re.compile(r"(\d{3})\.[^/]+/[^/.][^/]*\.jpg")
"""Name of an image in a pack: the number of its class, the class and the file."""


@dataclass(frozen=True)
class Pack:
    """Zip file of crops, `NNN.Class/<file>.jpg`, which may also be extracted.

    Attributes:
        name: Name in `DATASETS`.
        file: The name of the zip file; extracted, it is a folder of that name without the suffix.
        sha256: The hash of the zip file.
        contents: The hash of the images of each split, as `contents_sha256`.
        alternative: Another source of the data set, a whole sentence.
    """

    name: str
    file: str
    sha256: str
    contents: Mapping[str, str]
    alternative: str = ""

    def find(self, data: str | Path | None) -> Path | None:
        """Return the zip file or its extracted folder, None without either."""
        for root in data_roots(data):
            extracted = root / self.file.removesuffix(".zip")
            if (root / self.file).is_file():
                return root / self.file
            for folder in (extracted, root):
                if folder.is_dir() and any(folder.glob("[0-9][0-9][0-9].*/")):
                    return folder
        return None

    def missing(self, data: str | Path | None) -> DatasetError:
        """Return the error for a data folder without the pack."""
        return DatasetError(
            f"{self.file} is not in {' or '.join(map(str, data_roots(data)))}, and neither is its extracted folder, "
            f"NNN.Class/<file>.jpg. Name the folder that holds it with --data or ZOO_DATA. {self._origin}",
            code="dataset-missing",
        )

    def damaged(self, path: Path, code: str, reason: str) -> DatasetError:
        """Return the error for a copy that differs from the pack."""
        return DatasetError(f"{path}: {reason}. Replace it by {self.file}. {self._origin}", code=code)

    @property
    def _origin(self) -> str:
        text = f"The file is not published anywhere, as its photographs may not be passed on; sha256 {self.sha256}."
        return f"{text} {self.alternative}".strip()


_CROPS = "cub200_2010_s160.zip"
CUB2010_SOURCE = OfficialDataset(
    name="cub2010",
    title="CUB-200 of 2010",
    home="http://www.vision.caltech.edu/visipedia/CUB-200.html (or, where that is gone, a mirror of the same files)",
    folders=("CUB_200_2010", "CUB-200"),
    marks=("lists/train.txt",),
    archives=("images.tgz", "lists.tgz"),
    unfetched=f"It is not fetched for you: its photographs are others' own. Crops of them, {_CROPS}, are read as well.",
)
CUB2010_PACK = Pack(
    "cub2010",
    _CROPS,
    "a04ba33297a72b8a6f91d7b27aaec30c7c97f941ac9fa7e2393cae7050ee9f04",
    {
        "train": "0bc9bca5fcce0cd39b586a444ed8213fe2bf6f353b956ff2c88f6f54d3d18995",
        "test": "780d6e74849e3bdddbaa34f7263fd9b275fdb2c3332fd202be9601f8d289e848",
    },
    "The authors' images.tgz and lists.tgz, extracted into one folder, are read as well.",
)
CUB2010_EXPECTED = {"train": Counts(2_990, 100), "test": Counts(3_043, 100)}

CARS_HALF_PACK = Pack(
    "cars-half",
    "cars196_half_s160.zip",
    "a043da77fd58024b3a972a9f5672e6ad3ffff9b4fed2b3179857488f371ceaa0",
    {
        "train": "62b030401e7392e8d611158e10bffa4eeae37484d46121de23f26a62d64a5641",
        "test": "ef658578204cddb1180ef2c8979410a66d8e80a64e357d58be46f0dc2ef90d67",
    },
)
CARS_HALF_EXPECTED = {"train": Counts(4_052, 98), "test": Counts(4_092, 98)}


def load_cub2010(
    split: str,
    data: str | Path | None = None,
    expected: Mapping[str, Counts] = CUB2010_EXPECTED,
    pack: Pack = CUB2010_PACK,
) -> Dataset:
    """Return a split of CUB-200 of 2010: 6,033 photographs of 200 kinds of birds (Welinder et al., CNS-TR-2010-001).

    Images are the bytes of the pack's JPEG files, or paths of the authors' files in `images/`, as listed by
    `lists/train.txt` and `lists/test.txt`. The authors' split, within classes, is not used. Classes are named as their
    folders ("001.Black_footed_Albatross").

    Args:
        split: "train" (classes 1 to 100) or "test" (101 to 200).
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Counts of each split.
        pack: The zip file of crops, which is read first.

    Raises:
        DatasetError: If the data set is missing, incomplete or not the expected one.
    """
    if path := pack.find(data):
        return _read_pack(pack, path, split, expected)
    root = CUB2010_SOURCE.find(data)
    lists = [root / "lists" / name for name in ("train.txt", "test.txt")]
    rows = [(f"images/{name}", number) for path in lists for name, number in _read_list(path)]
    rows = sorted(row for row in rows if _in_split(row[1], split, expected))
    listing = Listing(root / "lists", root, [name for name, _ in rows], [number for _, number in rows])
    titles = {number: title.removeprefix("images/") for number, title in folder_titles(CUB2010_SOURCE, listing).items()}
    return listed_dataset(CUB2010_SOURCE, split, listing, expected[split], titles)


def load_cars_half(
    split: str,
    data: str | Path | None = None,
    expected: Mapping[str, Counts] = CARS_HALF_EXPECTED,
    pack: Pack = CARS_HALF_PACK,
) -> Dataset:
    """Return a split of the pack of 8,144 cars of 196 models, the training half of Cars196 (Krause et al. 2013).

    Images are the bytes of JPEG files; classes are named as their folders ("001.AM_General_Hummer_SUV_2000").

    Args:
        split: "train" (classes 1 to 98) or "test" (99 to 196).
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Counts of each split.
        pack: The zip file.

    Raises:
        DatasetError: If the pack is missing, incomplete or not the expected one.
    """
    if (path := pack.find(data)) is None:
        raise pack.missing(data)
    return _read_pack(pack, path, split, expected)


def contents_sha256(images: Iterable[bytes]) -> str:
    """Return the SHA-256 of the SHA-256 of each image, in the order of their names."""
    return hashlib.sha256(b"".join(hashlib.sha256(image).digest() for image in images)).hexdigest()


def _read_list(path: Path) -> list[tuple[str, int]]:
    """Return the names of an authors' list and the numbers of their classes."""
    names = [name for (name,) in read_rows(CUB2010_SOURCE, path, (str,))]
    if unnumbered := [name for name in names if not _IMAGE.fullmatch(name)]:
        raise CUB2010_SOURCE.damaged(
            "damaged-file", f"{path} lists {unnumbered[0][:80]!r}, which is not NNN.Class/<file>.jpg."
        )
    return [(name, int(name[:3])) for name in names]


def _in_split(number: int, split: str, expected: Mapping[str, Counts]) -> bool:
    """Return whether a class, numbered from 1, belongs to a split: the first ones train."""
    return (number <= expected["train"].classes) == (split == "train")


def _read_pack(pack: Pack, path: Path, split: str, expected: Mapping[str, Counts]) -> Dataset:
    """Return a split of the pack, after checks of its hash, classes and counts."""
    if path.is_file() and (actual := sha256_of(path)) != pack.sha256:
        raise pack.damaged(path, "hash-mismatch", f"its sha256 is {actual}, expected {pack.sha256}")
    try:
        images = _read_zip(path, split, expected) if path.is_file() else _read_folder(path, split, expected)
    except (BadZipFile, OSError) as error:
        raise pack.damaged(path, "unreadable-file", f"it cannot be read: {error}") from None
    names = sorted(images)
    _check(pack, path, split, {name: images[name] for name in names}, expected)
    classes, labels = np.unique([name.partition("/")[0] for name in names], return_inverse=True)
    return Dataset(
        pack.name,
        split,
        [images[name] for name in names],
        labels.astype(np.int64),
        tuple(classes.tolist()),
        names,
    )


def _read_zip(path: Path, split: str, expected: Mapping[str, Counts]) -> dict[str, bytes]:
    # A split has at most 46 MB: all of it is read at once, so that no open file is shared between threads.
    with ZipFile(path) as archive:
        return {name: archive.read(name) for name in _names(archive.namelist(), split, expected)}


def _read_folder(folder: Path, split: str, expected: Mapping[str, Counts]) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.glob("*/*.jpg")}
    return {name: files[name].read_bytes() for name in _names(files, split, expected)}


def _names(names: Iterable[str], split: str, expected: Mapping[str, Counts]) -> list[str]:
    """Return the names of the split's images; other files are left out."""
    numbered = [(name, match) for name in names if (match := _IMAGE.fullmatch(name))]
    return [name for name, match in numbered if _in_split(int(match[1]), split, expected)]


def _check(pack: Pack, path: Path, split: str, images: Mapping[str, bytes], expected: Mapping[str, Counts]) -> None:
    """Raise `DatasetError` if a class or image is missing, too many are there, or an image is not the pack's."""
    first = 1 if split == "train" else expected["train"].classes + 1
    numbers = range(first, first + expected[split].classes)
    if lacking := sorted(set(numbers) - {int(name[:3]) for name in images}):
        raise pack.damaged(
            path,
            "missing-file",
            f"it holds no images of class {', '.join(f'{number:03d}' for number in lacking[:3])}"
            f"{' and others' if len(lacking) > 3 else ''}, of {first:03d} to {numbers[-1]:03d} for {split}",
        )
    counts = Counts(len(images), len({name.partition("/")[0] for name in images}))
    if counts != expected[split]:
        raise pack.damaged(path, "damaged-file", f"it holds {counts} for {split}; expected {expected[split]}")
    if (actual := contents_sha256(images.values())) != pack.contents[split]:
        raise pack.damaged(
            path,
            "hash-mismatch",
            f"its {split} images are not the pack's: the sha256 of their contents is {actual}, expected "
            f"{pack.contents[split]}{_undecodable(images)}",
        )


def _undecodable(images: Mapping[str, bytes]) -> str:
    """Return a clause that names the first image that cannot be decoded, "" if all can be."""
    for name, image in images.items():
        try:
            open_image(image)
        except ImageError as error:
            return f"; {name} is damaged: {str(error).rstrip('.')}"
    return ""
