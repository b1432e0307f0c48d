"""Another model for a gallery: embed everything anew, compare, exchange, and go back.

The gallery is served and written to all the while. Where items cannot be embedded because neither their image files nor
thumbnails that are as good are at hand, the rule is one of:

    refuse      nothing is exchanged; the items are named
    thumbnail   their thumbnails are embedded, which are at most 256 pixels long and lossy; how many, is kept and told
    drop        they are removed from the gallery at the exchange, for good: going back does not bring them back
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.calibrating import calibrate_gallery, calibration_of
from serving.gallery import Gallery
from serving.gallery.binding import model_text, parsed_model
from serving.gallery.gallery import STORE
from serving.gallery.items import IndexStats
from serving.gallery.originals import Originals, folders_of
from serving.gallery.rebuilding import Missing, Pictures, Rebuild
from serving.gallery.shadow import REPLACED
from serving.gallery.store import Store
from serving.served import METRICS, model_change_steps, report
from zoo.errors import EvaluationError, ModelChangedError, ModelMismatchError, UsageError
from zoo.models.card import Card
from zoo.models.load import Embedder, load

RULES = ("refuse", "thumbnail", "drop")
MARGIN = 0.01
"""By how much a score may be lower for the model still to be called not worse."""
NOTICE = 3.0
"""Seconds between the announcement of a swap and the swap; services look every second (serving.renewing)."""


@dataclass(frozen=True)
class Compared:
    """Both models on the labelled items. rows: as `serving.served.report` gives them, the present model first; empty,
    with the `reason`, where nothing could be measured. index: how the new one is searched.
    """

    rows: list[dict[str, Any]]
    reason: str | None
    index: IndexStats

    def not_worse(self, margin: float = MARGIN) -> bool:
        """Whether it is shown that no score falls by more than `margin`: the 95 % intervals of all differences, over
        classes, lie above -margin. Not so where there are no labels, or too few to say.
        """
        if not self.rows:
            return False
        losses = self.rows[1]["loss"]["intervals"]
        return all(name in losses and losses[name][1] <= margin for name in METRICS)

    def undecided(self) -> str | None:
        """Why nothing can be said of which model is better; None where something can."""
        if not self.rows:
            return "nothing could be compared"
        if not all(name in self.rows[1]["loss"]["intervals"] for name in METRICS):
            return "items of one label alone say nothing of others"
        return None


class Upgrade:
    """`embed`, `compare` if wanted, `swap`. What was done of it before is not done again."""

    def __init__(self, path: Path, embedder: Embedder, rebuild: Rebuild, rule: str) -> None:
        """Use `upgrading`."""
        self.path, self.embedder, self._rebuild, self.rule = path, embedder, rebuild, rule
        self._announced: float | None = None

    def embed(self) -> list[Missing]:
        """Embed all that the new model has not embedded; what it cannot."""
        self._rebuild.fill()
        return self._rebuild.missing()

    @property
    def made(self) -> int:
        return self._rebuild.made

    def from_thumbnails(self) -> int:
        """How many items the new model knows by smaller pictures only."""
        return self._rebuild.store.shadow.from_thumbnails()

    def compare(self, queries: int = 2000) -> Compared:
        """Write the new model's index, measure both models, and calibrate the new one where the present one is."""
        with Gallery.open(self.path) as before, Gallery.open(self.path, other=True) as after:
            if after.is_due() or not after.index_stats().generation:
                after.compact()
            try:
                rows, reason = report(model_change_steps(before, after, queries), joined=True), None
                if calibration_of(before) is not None:
                    calibrate_gallery(after)
            except EvaluationError as error:
                rows, reason = [], str(error)
            return Compared(rows, reason, after.index_stats())

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Services that run are told that a swap may come within the block, and load the model meanwhile."""
        shadow, token = self._rebuild.store.shadow, self._rebuild.token
        shadow.announce(token)
        self._announced = time.monotonic()
        try:
            yield
        finally:
            with suppress(ModelChangedError):  # the swap has taken the announcement with it
                shadow.announce(token, coming=False)

    def swap(self, notice: float = NOTICE) -> None:
        """From now on the gallery is the new model's; not earlier than `notice` seconds after it was announced.

        Raises `MissingError` by the rule "refuse".
        """
        if self._announced is not None:
            time.sleep(max(0.0, self._announced + notice - time.monotonic()))
        self._rebuild.swap(drop=self.rule == "drop")


@contextmanager
def upgrading(
    path: Path,
    embedder: Embedder,
    model_ref: str,
    folders: Sequence[Path] = (),
    rule: str = "refuse",
    batch_size: int = 64,
    progress: bool = False,
) -> Iterator[Upgrade]:
    """Begin, or go on, to give the gallery `path` another model, which is loaded by `model_ref`.

    folders: where image files lie, besides the folders that were indexed. Embeddings of a third model, begun or kept
    to be gone back to, are let go. Raises `UsageError` for the model that the gallery has, and `GalleryError`.
    """
    if rule not in RULES or batch_size < 1:
        raise UsageError(f"missing images: one of {', '.join(RULES)}; batches of at least 1.")
    with Gallery.open(path) as gallery:
        known, card, ref = folders_of(gallery), gallery.card, gallery.model_ref
    if card.fingerprint == embedder.card.fingerprint:
        raise UsageError(f"{path} is embedded by {card.name} ({card.fingerprint[:12]}) already.")
    with Store(path / STORE).closing() as store, Store(path / STORE).closing() as reader:
        new = embedder.card
        token = store.shadow.begin(model_text(card, ref), model_text(new, model_ref), new.fingerprint, new.dim)
        pictures = Pictures(reader, embedder, Originals([*folders, *known]), rule == "thumbnail")
        yield Upgrade(path, embedder, Rebuild(path, store, token, pictures.make, batch_size, progress), rule)


def replaced(path: Path) -> tuple[Card, str]:
    """The model that can be gone back to, and how it is loaded. Raises `UsageError` where there is none."""
    with Store(path / STORE).closing() as store:
        slot = store.shadow.slot()
    if slot is None or slot.role != REPLACED:
        raise UsageError(f"{path} keeps no embeddings of a model that it had before; there is nothing to go back to.")
    return parsed_model(slot.model, path / STORE)


def load_replaced(
    path: Path, model: str | None, runtime: str = "onnx", precision: str = "fp32"
) -> tuple[Embedder, str]:
    """The model that can be gone back to, as `zoo.load` loads it; `model`: where it lies now, if it has moved."""
    card, ref = replaced(path)
    embedder = load(model or ref, runtime=runtime, precision=precision)
    if embedder.card.fingerprint != card.fingerprint:
        raise ModelMismatchError(
            f"{model or ref} is {embedder.card.name} ({embedder.card.fingerprint[:12]}), but {path} had {card.name} "
            f"({card.fingerprint[:12]}) before. Name that one with --model."
        )
    return embedder, ref


def discard(path: Path) -> None:
    """Let go of the other model's embeddings, of a rebuild that was begun or of the model before."""
    Gallery.open(path).close()
    with Store(path / STORE).closing() as store:
        store.shadow.discard()
