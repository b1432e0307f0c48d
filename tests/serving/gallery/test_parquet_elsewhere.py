"""The Parquet export of a gallery in LanceDB and in Qdrant: its filters of metadata answer as ours do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from serving.gallery import VectorGallery
from serving.gallery.filters import Filter
from serving.gallery.parquet import ITEMS, export_gallery
from tests.serving.gallery.test_gallery import CARD, new_items, unit_rows

QUERY = unit_rows(1, seed=5)[0]


@pytest.fixture
def export(tmp_path: Path) -> tuple[Any, list[int]]:
    """The table of a gallery whose items have a number, a text and a flag; and the ids of a filtered search of ours."""
    rows = unit_rows(300)
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        metadata = [
            {
                "price": number / 10,
                "brand": "ab"[number % 2],
                "sold": number % 3 == 0,
                **({"year": 2000} if number else {}),
            }
            for number in range(len(rows))
        ]
        gallery.add([replace(item, metadata=own) for item, own in zip(new_items(rows), metadata, strict=True)])
        where = Filter(where={"price": {"lt": 20.0}, "brand": "a", "sold": False})
        hits = gallery.search(QUERY[None], 5, selection=where)[0]
    export_gallery(tmp_path / "g", tmp_path / "out")
    return parquet.read_table(tmp_path / "out" / ITEMS), [hit.id for hit in hits]


def in_lancedb(table: Any, folder: Path) -> list[int]:
    import lancedb  # only `make slow` installs it, and the next

    items = lancedb.connect(folder).create_table("items", table)
    query = items.search(QUERY, vector_column_name="embedding").distance_type("cosine")
    found = query.where("price < 20 AND brand = 'a' AND NOT sold", prefilter=True).limit(5).to_list()
    return [row["id"] for row in found]


def in_qdrant(table: Any, folder: Path) -> list[int]:
    import qdrant_client
    from qdrant_client import models

    client = qdrant_client.QdrantClient(":memory:")
    size = table.schema.field("embedding").type.list_size
    client.create_collection("items", models.VectorParams(size=size, distance=models.Distance.COSINE))
    rows = table.drop_columns(["thumbnail"]).to_pylist()
    points = [models.PointStruct(id=row["id"], vector=row.pop("embedding"), payload=row) for row in rows]
    client.upsert("items", points)
    conditions = [
        models.FieldCondition(key="price", range=models.Range(lt=20)),
        models.FieldCondition(key="brand", match=models.MatchValue(value="a")),
        models.FieldCondition(key="sold", match=models.MatchValue(value=False)),
    ]
    found = client.query_points("items", QUERY.tolist(), query_filter=models.Filter(must=conditions), limit=5)
    return [point.id for point in found.points]


@pytest.mark.slow
@pytest.mark.parametrize("search", [in_lancedb, in_qdrant])
def test_another_database_filters_by_the_columns(
    export: tuple[Any, list[int]], tmp_path: Path, search: Callable[[Any, Path], list[int]]
) -> None:
    table, expected = export
    assert len(expected) == 5
    assert search(table, tmp_path / "other") == expected
