"""A served gallery that follows another one: its folder, its model, and the queries that wait for what is new."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.following.follower import Follower
from serving.following.gate import Gate
from serving.following.primary import Address, Primary
from serving.galleries import Place
from serving.gallery.gallery import model_at
from serving.models import Models
from serving.searcher import Searcher
from zoo.data.images import Limits
from zoo.errors import ModelMismatchError, ZooError
from zoo.models.card import Card
from zoo.models.load import Embedder


class Following:
    """`follower` keeps the folder up with the primary; `gate` lets queries through once it is. Safe in threads."""

    def __init__(self, place: Place, address: Address, limits: Limits, models: Models) -> None:
        """place: the folder, and the name under which the primary has its gallery too."""
        self._place, self._limits, self._models = place, limits, models
        self.primary = Primary(address, f"/collections/{place.name}" if place.name else "")
        self.follower = Follower(Path(place.gallery), self.primary, self._prepare)
        self.gate = Gate(self.follower)
        self._prepared: Embedder | None = None
        self._opening = threading.Lock()

    def open(self) -> Searcher:
        """The gallery, copied here first where it was not, with its model. Raises `FollowingError` where it cannot be
        copied, and `ModelMismatchError` where its model is not here.
        """
        with self._opening:
            self.follower.begin()
            folder = Path(self._place.gallery)
            card, ref = model_at(folder)
            loaded, where = self._model(card, [self._place.model, ref])
            searcher = Searcher.open(folder, where, self._limits, self._models)
            self._prepared = loaded
            return searcher

    def told(self) -> dict[str, Any]:
        """For GET /stats. behind: seconds for which the primary could not be asked; 0 where all is here."""
        return {"primary": self.primary.url, "behind": self.follower.behind() or 0.0}

    def _prepare(self, card: Card, ref: str) -> None:
        self._prepared = self._model(card, [ref, self._place.model])[0]

    def _model(self, card: Card, refs: Sequence[str | None]) -> tuple[Embedder, str]:
        """The model of that card, and by which of the names it was found."""
        reasons = []
        for ref in filter(None, refs):
            try:
                found = self._models.get(card.fingerprint, ref)
            except ZooError as error:
                reasons.append(str(error).rstrip("."))
                continue
            if found.card.fingerprint == card.fingerprint:
                return found, ref
            reasons.append(f"{ref} is {found.card.name} ({found.card.fingerprint[:12]})")
        raise ModelMismatchError(
            f"the gallery of {self.primary.url} is embedded by {card.name} ({card.fingerprint[:12]}), which is not "
            f"here: {'; '.join(reasons)}. Copy that model's folder to this host, and name it with --model."
        )
