"""A collection of Milvus that holds one gallery's vectors, and says in its properties which and up to which change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from serving.gallery.items import Block
from serving.gallery.milvus_address import Address
from serving.gallery.milvus_file import opening
from zoo.errors import BackendError, GalleryError, missing

TOKEN = "ZOO_MILVUS_TOKEN"
"""The environment variable with what a server wants to see: user:password, or a key."""
PIECE = 1000
_PREFIX = "zoo."

T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """What the collection is a copy of: the gallery's own name, its model's fingerprint, its last change."""

    gallery: str
    fingerprint: str
    change: int


class Collection:
    """Vectors by id. Whatever Milvus refuses, or that it cannot be reached, is a `BackendError`; an embedded one that
    another process has open is a `UsageError`.
    """

    def __init__(self, address: Address) -> None:
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise missing("pymilvus", "milvus") from None
        self.address, self.name = address, address.collection
        given = {"token": token} if (token := os.environ.get(TOKEN)) and not address.embedded else {}
        with opening(address) if address.embedded else nullcontext():
            self._client = self._do(MilvusClient, address.uri, **given)

    def close(self) -> None:
        self._client.close()

    def held(self) -> Held | None:
        """None where there is no collection of that name. Raises `GalleryError` for one that is no gallery's."""
        if not self._do(self._client.has_collection, self.name):
            return None
        properties = self._do(self._client.describe_collection, self.name).get("properties") or {}
        try:
            gallery, fingerprint, change = (str(properties[_PREFIX + key]) for key in ("gallery", "model", "change"))
            held = Held(gallery, fingerprint, int(change))
        except (KeyError, ValueError):
            raise GalleryError(f"the collection of {self.address.text} is no gallery's; name another one.") from None
        self._do(self._client.load_collection, self.name)  # an embedded one is released when its process ends
        return held

    def create(self, dim: int, held: Held) -> None:
        """An empty collection of that name, in place of what there was."""
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        index = self._client.prepare_index_params()
        kind = "FLAT" if self.address.embedded else "AUTOINDEX"
        index.add_index(field_name="vector", index_type=kind, metric_type="IP")
        self.drop()
        self._do(
            self._client.create_collection,
            self.name,
            schema=schema,
            index_params=index,
            consistency_level="Strong",
            properties=_as_properties(held),
        )

    def drop(self) -> None:
        self._do(self._client.drop_collection, self.name)

    def write(self, blocks: Iterable[Block], removed: np.ndarray, held: Held) -> None:
        """Take vectors in and ids out, then say what is held. To do it twice is to do it once."""
        for ids, vectors in blocks:
            for start in range(0, len(ids), PIECE):
                piece = slice(start, start + PIECE)
                pairs = zip(ids[piece].tolist(), vectors[piece], strict=True)
                self._do(self._client.upsert, self.name, [{"id": one, "vector": vector} for one, vector in pairs])
        for start in range(0, len(removed), PIECE):
            self._do(self._client.delete, self.name, ids=removed[start : start + PIECE].tolist())
        self._do(self._client.alter_collection_properties, self.name, _as_properties(held))

    def count(self) -> int:
        rows = self._do(
            self._client.query, self.name, filter="id >= 0", output_fields=["count(*)"], consistency_level="Strong"
        )
        return int(rows[0]["count(*)"])

    def search(self, vectors: np.ndarray, k: int, among: np.ndarray | None) -> list[list[tuple[float, int]]]:
        """Similarity and id of up to `k` nearest to each of float32 [q, dim], of the ids `among`, where given."""
        chosen = "" if among is None else f"id in {among.tolist()}"
        found = self._do(
            self._client.search,
            self.name,
            data=list(vectors),
            limit=k,
            filter=chosen,
            output_fields=["id"],
            search_params={"metric_type": "IP"},
            anns_field="vector",
            consistency_level="Strong",
        )
        return [[(float(hit["distance"]), int(hit["id"])) for hit in row] for row in found]

    def vectors(self, ids: Sequence[int], dim: int) -> Block:
        """Those of the ids that are there, ascending, and their vectors."""
        found: dict[int, Any] = {}
        for start in range(0, len(ids), PIECE):
            piece = list(ids[start : start + PIECE])
            rows = self._do(self._client.get, self.name, ids=piece, output_fields=["id", "vector"])
            found |= {int(row["id"]): row["vector"] for row in rows}
        order = sorted(found)
        return np.array(order, np.int64), np.array([found[one] for one in order], np.float32).reshape(-1, dim)

    def _do(self, call: Callable[..., T], *args: Any, **values: Any) -> T:
        try:
            return call(*args, **values)
        except Exception as error:  # pymilvus's own, grpc's and, of an embedded one, the operating system's
            reason = str(getattr(error, "message", "") or error) or type(error).__name__
            raise BackendError(f"Milvus at {self.address.text} failed: {reason[:300]}") from None


def _as_properties(held: Held) -> dict[str, str]:
    values = {"gallery": held.gallery, "model": held.fingerprint, "change": str(held.change)}
    return {_PREFIX + key: value for key, value in values.items()}
