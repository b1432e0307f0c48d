"""Features of a person's own pictures, kept for the next method that is tried on them."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from training.frozen.extract import Model, extract
from training.frozen.views import Views
from training.run import Place
from zoo import paths
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.features import Features, read_features
from zoo.models.torch_runtime import choose_device

KEPT = 4
"""How many files stay: a few methods are tried on the same pictures, and a file may be gigabytes."""


def cached_features(
    model: Model, train: Dataset, views: Views, device: str | None = None, progress: bool = False
) -> Features:
    """The trunk's features of the data set, from `ZOO_HOME/cache` where they are there, else made and put there.

    Of such files the last `KEPT` that were used stay. Raises what `extract` and `read_features` raise.
    """
    file = paths.home() / "cache" / f"features-{_key(model, train, views)}.safetensors"
    if not _usable(file):
        extract(model, train, file, views, place=Place(choose_device(device)), progress=progress)
    os.utime(file)
    _prune(file)
    return read_features(file)


def _usable(file: Path) -> bool:
    """What a full disk or another version left is made again, for nobody knows of this file."""
    try:
        read_features(file)
    except UsageError:
        return False
    return True


def _prune(used: Path) -> None:
    """Delete all files but the last used; `used` stays, whatever the clock says."""
    others = [file for file in used.parent.glob("features-*.safetensors") if file != used]
    with suppress(FileNotFoundError):  # another process prunes as well
        for file in sorted(others, key=lambda file: file.stat().st_mtime_ns, reverse=True)[KEPT - 1 :]:
            file.unlink(missing_ok=True)


def _key(model: Model, train: Dataset, views: Views) -> str:
    """Another name for another model, other views, labels or files (by path, size and time of change)."""
    total = hashlib.sha256(f"{model.card.fingerprint} {views}\n".encode())
    total.update(json.dumps([list(train.classes), train.labels.tolist()]).encode())
    for image in train.images:
        path = Path(str(image))
        facts = path.stat()
        total.update(f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return total.hexdigest()[:16]
