"""Operations that change a collection, and the list of marks: for the OpenAPI description."""

from __future__ import annotations

from serving import feedback
from serving.openapi_parts import REFUSALS, WRITING, answer, images, item_id, parameter, refusal, text
from serving.openapi_schemas import Json, object_of, ref

_VERDICT: Json = {"type": "string", "enum": list(feedback.VERDICTS)}


def evaluate() -> Json:
    return {
        "summary": "Measure R@1, R@5, R@10 and MAP@R of the labelled items, exactly and through the index, and "
        "calibrate p_same",
        "description": "It may take minutes, and is done once at a time. served_model: of up to 256 items whose image "
        "files are still there the least cosine of stored embeddings to those that the served runtime and precision "
        "make today, and R@1 through the index by each. reliability: in each tenth of p_same the mean of what was "
        "promised and the share that was so, of pairs of classes that it was not fitted to. marks: how many results "
        "were marked, the part that is right and those that contradict the labels. Needs a write key.",
        "responses": {
            "200": answer("The measurement", {"type": "object"}),
            **WRITING,
            "409": refusal("the gallery is being evaluated"),
            "422": refusal("labels that nothing can be measured by"),
        },
    }


def add() -> Json:
    return {
        "summary": "Add images",
        "description": "The fields label, source and metadata (a JSON object) hold for all images of the request. An "
        "image whose content is there already is answered with its item; where that has another label or metadata it "
        "is named in differing, and with update it gets those of the request. One that cannot be read is named in "
        "refused, and the others are added. With a key an image can be sent again and is added once; for another image "
        "that key is refused. Needs a write key.",
        "parameters": [
            text("label", "Of all images"),
            text("source", "Where they come from"),
            text("metadata", "JSON"),
            text(
                "key", "What you call the image, up to 200 characters, of one image alone; no other item has the same"
            ),
            {
                **text("update", "Also of images that are there already"),
                "schema": {"type": "boolean", "default": False},
            },
        ],
        "requestBody": images("image"),
        "responses": {
            "200": answer("All were there already", ref("Added")),
            "201": answer("Added", ref("Added")),
            "409": refusal("a key that is another image's, or an image that is there under another key (key_taken)"),
            **REFUSALS,
            **WRITING,
        },
    }


def marks() -> Json:
    return {
        "summary": "The results that were marked right or wrong, in the order in which they first were, page by page",
        "parameters": [
            parameter("offset", "How many to pass over", 0, None, 0),
            parameter("limit", "How many to give", 1, feedback.MOST, 50),
            text("query", "Only of this query: the id of an item, or the content_sha256 of an image"),
            parameter("item", "Only of this result", 0, None, None),
            {**text("verdict", "Only of this verdict"), "schema": _VERDICT},
        ],
        "responses": {
            "200": answer("Marks", ref("Marks")),
            "404": refusal("no such item"),
            "422": refusal("a parameter out of range"),
        },
    }


def mark() -> Json:
    return {
        "summary": "Mark a result right, of the query's class, or wrong",
        "description": "Marking the pair again replaces the mark. query: the id of an item, or content_sha256, "
        "embedding and fingerprint of an image as POST /embed gives them; of such an image the hash and the source are "
        "kept. Without the fingerprint it is taken where the gallery never had another model. Marks are calibrated and "
        "evaluated by; they go when one of their items is removed. Needs a write key.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref("NewMark")}}},
        "responses": {
            "200": answer("It takes the place of an older mark", ref("Mark")),
            "201": answer("Marked", ref("Mark")),
            **WRITING,
            "404": refusal("no such item"),
            "409": refusal("an embedding of another model than the gallery has now; embed the image again"),
            "422": refusal("a body that is not understood, or an image marked as a result of itself"),
        },
    }


def take_back() -> Json:
    return {
        "summary": "Take a mark back. Needs a write key",
        "parameters": [item_id()],
        "responses": {
            "200": answer("It is gone", object_of({"removed": {"type": "integer"}})),
            **WRITING,
            "404": refusal("no such mark"),
        },
    }


def describe() -> Json:
    body = {"label": {"type": ["string", "null"]}, "metadata": {"type": "object"}}
    return {
        "summary": "Change an item's label or metadata; what is not named stays. Needs a write key",
        "description": "gallery_change is the number of this change, as GET /stats gives it; change is that of the one "
        "that added the item, and stays.",
        "parameters": [item_id()],
        "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": body}}}},
        "responses": {
            "200": answer("The item", ref("Described")),
            **WRITING,
            "404": refusal("no such item"),
            "422": refusal("a body that is not understood"),
        },
    }


def remove() -> Json:
    return {
        "summary": "Remove an item. Needs a write key",
        "parameters": [item_id()],
        "responses": {
            "200": answer("It is gone", object_of({"removed": {"type": "integer"}})),
            **WRITING,
            "404": refusal("no such item"),
        },
    }
