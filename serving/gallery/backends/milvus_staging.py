"""Second slot of embeddings of a gallery in Milvus: a collection that is filled, and then named as the present one.

An alias of Milvus would name the collection alone; the row names the model with it. Writers read the row after each
write, so that what they wrote to the old collection during a swap is written to the new one as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np

from serving.gallery.backends.milvus import MilvusStore, fact_value, items_name, present_model
from serving.gallery.backends.milvus_client import Row
from serving.gallery.backends.milvus_rows import MODEL, SLOT, WHOLE, fact_row
from serving.gallery.staging import REBUILT, REPLACED, StagedEmbedding
from serving.gallery.types import model_json
from zoo.errors import ModelChangedError
from zoo.models.card import Card


class MilvusStaging:
    """The items by another model, in a collection that is filled from the present model's."""

    def __init__(self, store: MilvusStore, card: Card, model_ref: str) -> None:
        """Keep what an earlier rebuild by the same model has embedded, and drop the embeddings by a third model."""
        self.store, self.connection = store, store.connection
        self.source, self.target = store.collection, items_name(store.connection.address, card)
        self.token, self.swapped = secrets.token_hex(8), False
        self._seen, self._tried = set[int](), set[int]()
        slot = fact_value(self.connection, SLOT, strong=True)
        if slot and slot["collection"] != self.target:
            self.connection.drop(slot["collection"])
        role = slot["role"] if slot and slot["collection"] == self.target else REBUILT
        self.connection.create_items(self.target, card.dim)
        self.connection.load(self.target)
        value = {"collection": self.target, "model": model_json(card, model_ref), "role": role, "coming": False}
        self._write({**value, "token": self.token})

    def missing(self, since: int = 0) -> tuple[int, list[int]]:
        """Return `since`, and the ids of the items that are not embedded and were not tried before.

        After the swap these are the items that others added to the old collection during the swap.
        """
        present = self._ids(self.source)
        missing = present - self._ids(self.target) - self._tried
        if self.swapped:
            missing -= self._seen
        else:
            self._seen = present
        self._tried |= missing
        return since, sorted(missing)

    def put(self, token: str, made: Iterable[StagedEmbedding]) -> None:
        """Write the embeddings of items that still exist."""
        by_id = {one.item: one for one in made}
        rows = self.connection.by_ids(self.source, list(by_id), WHOLE, strong=True)
        self.connection.write(self.target, [{**row, **_embedded(by_id[number])} for number, row in rows.items()])

    def mark_embedded(self, token: str, number: int) -> None:
        """Do nothing: `missing` compares the collections."""

    def announce(self, token: str, coming: bool = True) -> None:
        """Tell services whether the swap is near, so that they load the model."""
        slot = self._checked()
        if not self.swapped:
            self._write({**slot, "coming": coming})

    def from_thumbnails(self) -> int:
        return self.connection.count(self.target, "from_thumbnail == true")

    def copy_descriptions(self) -> None:
        """Copy labels, metadata, sources and keys that are newer in the old collection, and remove removed items."""
        for piece in self.connection.scan(self.source, "", ("id", "change"), size=1000):
            changes = {row["id"]: row["change"] for row in piece}
            copies = self.connection.by_ids(self.target, list(changes), ("id", "change"))
            self._copy([number for number, row in copies.items() if changes[number] > row["change"]])
        kept = self._seen if self.swapped else self._ids(self.target)
        self.connection.delete(self.target, sorted(kept - self._ids(self.source)))

    def exchange(self) -> None:
        """Swap the collections; the other one stays for a rollback."""
        slot, old = self._checked(), present_model(self.connection)
        value = {**old, "role": REPLACED, "coming": False, "token": secrets.token_hex(8)}
        present = {"collection": slot["collection"], "model": slot["model"]}
        self.connection.write(self.store.facts_name, [fact_row(MODEL, present), fact_row(SLOT, value)])
        self.store.next_change()
        self.swapped = True

    def _checked(self) -> Row:
        slot = fact_value(self.connection, SLOT, strong=True)
        if not slot or (slot["token"] != self.token and not self.swapped):
            raise ModelChangedError(
                "another rebuild or rollback of this gallery has taken the place of this one.",
                code="rebuild-superseded",
            )
        return slot

    def _copy(self, ids: list[int]) -> None:
        rows = self.connection.by_ids(self.source, ids, WHOLE)
        own = self.connection.by_ids(self.target, ids, ("id", "vector", "from_thumbnail"))
        self.connection.write(self.target, [{**rows[number], **row} for number, row in own.items() if number in rows])

    def _ids(self, collection: str) -> set[int]:
        return {row["id"] for piece in self.connection.scan(collection, "", ("id",)) for row in piece}

    def _write(self, value: Row) -> None:
        self.connection.write(self.store.facts_name, [fact_row(SLOT, value)])


def _embedded(made: StagedEmbedding) -> Row:
    return {"vector": np.frombuffer(made.blob, "<f4").tolist(), "from_thumbnail": made.from_thumbnail}
