"""Filters, cuts, crops, several images, re-ranking and embeddings over a real connection."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from serving.gallery import Gallery
from serving.gallery.search import expanded, k_reciprocal
from tests.serving import toys
from zoo.models.load import Embedder


def results(http: httpx.Client, **values) -> list[dict]:
    answer = http.post("/search", params={"id": 1, "k": 24, **values})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_labels_are_a_filter(http: httpx.Client) -> None:
    everything = results(http)
    one, other = toys.CLASSES[0], toys.CLASSES[1]
    for labels in ([one], [one, other], ["no such label"]):
        assert results(http, label=labels) == [hit for hit in everything if hit["label"] in labels]


def test_pages_of_results_follow_one_another(http: httpx.Client) -> None:
    everything = results(http)
    assert [hit for offset in range(0, 24, 5) for hit in results(http, k=5, offset=offset)] == everything


def test_a_least_similarity_cuts(http: httpx.Client) -> None:
    everything = results(http)
    least = everything[4]["similarity"]
    assert results(http, min_similarity=least) == [hit for hit in everything if hit["similarity"] >= least]
    assert results(http, min_similarity=-1) == everything


@pytest.mark.parametrize("rerank", ["expansion", "reciprocal"])
def test_reranked_results_are_the_same_items(http: httpx.Client, rerank: str) -> None:
    found = results(http, rerank=rerank)
    assert sorted(hit["id"] for hit in found) == sorted(hit["id"] for hit in results(http))
    assert 1 not in [hit["id"] for hit in found]
    scores = [hit["rerank_score"] for hit in found]
    assert scores == sorted(scores, reverse=True)
    assert all("rerank_score" not in hit for hit in results(http))


def test_the_score_of_reranked_results_is_that_of_the_method(http: httpx.Client, gallery_folder: Path) -> None:
    with Gallery.open(gallery_folder) as gallery:
        query, others = gallery.store.embedding(1), {one: gallery.store.embedding(one) for one in range(2, 25)}
        nearest = [hit["id"] for hit in results(http)]
        near = np.stack([others[one] for one in nearest])
    distances = dict(zip(nearest, k_reciprocal(query, near), strict=True))
    for hit in results(http, rerank="reciprocal"):
        assert hit["rerank_score"] == pytest.approx(1 - distances[hit["id"]])
        assert hit["similarity"] == pytest.approx(float(others[hit["id"]] @ query), abs=1e-6)
    wider = expanded(query, near[:10])
    for hit in results(http, rerank="expansion"):
        assert hit["rerank_score"] == pytest.approx(float(others[hit["id"]] @ wider), abs=1e-6)
        assert hit["similarity"] == pytest.approx(float(others[hit["id"]] @ query), abs=1e-6)
    of_one = {hit["id"]: hit["p_same"] for hit in results(http)}
    for hit in results(http, rerank="expansion"):
        assert hit["p_same"] == of_one[hit["id"]], "the curve was fitted to similarities of one to one"


@pytest.mark.parametrize("rerank", ["none", "expansion", "reciprocal"])
def test_pages_with_a_cut_have_every_result_once(http: httpx.Client, rerank: str) -> None:
    everything = results(http, rerank=rerank)
    least = sorted(hit["similarity"] for hit in everything)[len(everything) // 2]
    expected = [hit["id"] for hit in everything if hit["similarity"] >= least]
    pages = [results(http, rerank=rerank, min_similarity=least, k=3, offset=start) for start in range(0, 24, 3)]
    assert [hit["id"] for page in pages for hit in page] == expected


def test_an_answer_says_its_order_and_which_labels_there_are_not(http: httpx.Client) -> None:
    def told(**values) -> tuple[str, list[str]]:
        answer = http.post("/search", params={"id": 1, **values}).json()
        return answer["ordered_by"], answer["notes"]

    assert told() == told(label=toys.CLASSES[1]) == ("similarity", [])
    assert told(rerank="reciprocal")[0].startswith("shared neighbours")
    assert "first results" in told(rerank="expansion")[0]
    misspelt, unknown = told(label=["red strips", toys.CLASSES[1], "zzz"])[1]
    assert misspelt.startswith("No item has the label 'red strips'. Did you mean 'red stripes'")
    assert unknown == "No item has the label 'zzz'."
    for label, noted in (("red strips", 1), (toys.CLASSES[1], 0)):
        assert len(http.get("/items", params={"label": label}).json()["notes"]) == noted
    files = [("image", toys.query(0)), ("image", toys.query(1))]
    several = http.post("/search?label=zzz&rerank=reciprocal", files=files).json()
    assert (len(several["searches"]), len(several["notes"])) == (2, 1)
    assert told(where=json.dumps({"yeer": 1908}))[1] == ["No item has metadata called 'yeer'."]
    assert told(where=json.dumps({"yeer": None}))[1] == []  # which all items have
    assert http.get("/items", params={"where": '{"yeer": 1908}'}).json()["notes"] == told(where='{"yeer": 1908}')[1]


def test_a_crop_is_searched_as_the_part_by_itself(http: httpx.Client) -> None:
    draw = np.random.default_rng(0)
    whole = Image.fromarray(draw.integers(0, 256, (80, 120, 3), np.uint8))
    out, part = BytesIO(), BytesIO()
    whole.save(out, "PNG")
    whole.crop((30, 20, 90, 60)).save(part, "PNG")
    cropped = http.post("/search?crop=0.25,0.25,0.75,0.75", content=out.getvalue()).json()["results"]
    assert cropped == http.post("/search", content=part.getvalue()).json()["results"]
    assert cropped != http.post("/search", content=out.getvalue()).json()["results"]


def test_several_images_and_a_bad_one_among_them(http: httpx.Client) -> None:
    files = [("image", (name, data)) for name, data in (("a", toys.query(0)), ("b", b"junk"), ("c", toys.query(1)))]
    searches = http.post("/search?k=3", files=files).json()["searches"]
    assert [one["query"]["name"] for one in searches] == ["a", "b", "c"]
    assert searches[1]["error"]["code"] == "unreadable_image"
    for one, kind in ((searches[0], 0), (searches[2], 1)):
        assert one["results"] == http.post("/search?k=3", content=toys.query(kind)).json()["results"]


def test_embeddings_in_every_form_are_the_models(http: httpx.Client, model: Embedder) -> None:
    queries = [toys.query(i) for i in range(3)]
    expected = model.embed(queries)
    files = [("image", (f"{i}.png", data)) for i, data in enumerate(queries)]
    told = http.post("/embed", files=files).json()
    assert (told["model"], told["dim"]) == (model.card.name, model.dim)
    np.testing.assert_array_equal(np.array(told["embeddings"], np.float32), expected)
    coded = http.post("/embed?format=base64", files=files).json()["embeddings"]
    np.testing.assert_array_equal([np.frombuffer(base64.b64decode(row), "<f4") for row in coded], expected)
    array = http.post("/embed?format=npy", files=files)
    np.testing.assert_array_equal(np.load(BytesIO(array.content), allow_pickle=False), expected)
    assert (array.headers["X-Model"], array.headers["X-Model-Fingerprint"]) == (told["model"], told["fingerprint"])
    described = http.get("/openapi.json").json()["paths"]["/embed"]["post"]["responses"]["200"]["headers"]
    assert {*described} == {"X-Model", "X-Model-Fingerprint"}
    bad = http.post("/embed", files=[*files, ("image", ("bad.png", b"junk"))])
    assert bad.status_code == 422
    assert "image 4 (bad.png)" in bad.json()["error"]["message"]


def test_stats_and_metrics(http: httpx.Client) -> None:
    told = http.get("/stats").json()
    assert (told["items"], told["index"]["kind"], told["calibration"]) == (24, "flat", None)
    http.post("/search?id=1")
    text = http.get("/metrics").text
    assert 'zoo_gallery_items{collection=""} 24.0' in text
    assert 'zoo_stage_seconds_count{collection="",stage="find"}' in text
    json.dumps(told, allow_nan=False)
