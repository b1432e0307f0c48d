"""OpenAI's API: what its own client, litellm and LangChain get, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from starlette.testclient import TestClient

from serving.app import create_app
from serving.dependencies import BareModel, Collections
from serving.gallery.encoder import Encoder
from serving.keys import Keys
from tests import text_toys
from tests.children import run_python
from tests.serving import toys
from tests.serving.running import answering, app_over, local_client, settings
from zoo.data.images import DEFAULT_LIMITS
from zoo.models.load import Embedder, load

KEY = "a-read-key-of-openai-clients"
NAME = "toy-pool"
TEXTS = ["a red chair", "two people ride bicycles in the rain", "blue checks"]


def uri(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def part(image: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri(image)}}


IMAGES = [toys.query(kind) for kind in (0, 1, 2, 3)]


@pytest.fixture(scope="module")
def url(text_gallery: Path) -> Iterator[str]:
    """A service with a read key over a gallery whose model has a text tower, at the address that clients take."""
    with answering(app_over(text_gallery, read_keys=KEY)) as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as connected:
        yield connected


def rows(answer: Any) -> np.ndarray:
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    return np.array([row.embedding for row in answer.data], np.float32)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_images_of_the_openai_client_have_the_bits_of_zoo_embed(client: OpenAI, towers: Embedder, form: Any) -> None:
    """None: the client asks for base64, and decodes it."""
    options = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model=NAME, input=[uri(image) for image in IMAGES], **options)
    assert (answer.model, answer.object, answer.usage.prompt_tokens) == (NAME, "list", 0)
    if form == "base64":
        encoded = [base64.b64decode(row.embedding) for row in answer.data]  # type: ignore[arg-type]
        np.testing.assert_array_equal([np.frombuffer(row, "<f4") for row in encoded], towers.embed(IMAGES))
    else:
        np.testing.assert_array_equal(rows(answer), towers.embed(IMAGES))


def test_texts_have_the_bits_of_embed_text_and_their_tokens_are_counted(client: OpenAI, towers: Embedder) -> None:
    answer = client.embeddings.create(model=NAME, input=TEXTS)
    np.testing.assert_array_equal(rows(answer), towers.embed_text(TEXTS))
    np.testing.assert_allclose(rows(answer), text_toys.expected(TEXTS, toys.DIM), atol=1e-6)
    words = [min(len(text.split()) + 2, text_toys.LENGTH) for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(words)
    cut = [getattr(row, "truncated", False) for row in answer.data]
    assert cut == [len(text.split()) + 2 > text_toys.LENGTH for text in TEXTS]


NULLABLE = ("messages", "modality", "encoding_format", "dimensions", "user")


def test_every_way_to_send_an_image_gives_one_embedding(client: OpenAI, url: str, towers: Embedder) -> None:
    image, large = IMAGES[1], toys.encoded(toys.picture(1, np.random.default_rng(7), side=200))
    encoded = base64.b64encode(image).decode()
    lines = base64.encodebytes(large).decode()
    ways = {
        "a data URI": (image, {"input": uri(image)}),
        "of another kind": (image, {"input": [uri(image, "application/octet-stream;name=a.png")]}),
        "vLLM's and infinity's part": (image, {"input": [part(image)]}),
        "a part alone": (image, {"input": {"type": "image_url", "image_url": uri(image)}}),
        "plain base64 in a part": (image, {"input": [{"type": "image_url", "image_url": {"url": encoded}}]}),
        "Jina's": (image, {"input": [{"image": encoded}]}),
        "infinity's modality": (image, {"input": [encoded], "modality": "image"}),
        "plain base64": (large, {"input": [base64.b64encode(large).decode()]}),
        "base64 in lines": (large, {"input": lines}),
        "Jina's part without a type": (image, {"input": [{"image_url": {"url": uri(image)}}]}),
        "after white space": (image, {"input": [f"\n {uri(image)}"]}),
        "vLLM's messages": (image, {"messages": [{"role": "user", "content": [part(image)]}]}),
        "a string of a message": (image, {"messages": [{"role": "user", "content": uri(image)}]}),
        "base64 of a message": (image, {"messages": [{"role": "user", "content": encoded}], "modality": "image"}),
        "null for what is not given": (image, {"input": uri(image)} | dict.fromkeys(NULLABLE)),
    }
    for way, (sent, body) in ways.items():
        answer = httpx.post(
            f"{url}/embeddings", json={"model": NAME, **body}, headers={"authorization": f"Bearer {KEY}"}
        )
        assert answer.status_code == 200, (way, answer.text)
        (row,) = answer.json()["data"]
        np.testing.assert_array_equal(np.float32(row["embedding"]), towers.embed(sent)[0], err_msg=way)


def test_images_and_texts_of_one_request_stay_in_order(client: OpenAI, towers: Embedder) -> None:
    mixed: Any = [TEXTS[0], uri(IMAGES[0]), {"text": TEXTS[1]}, part(IMAGES[1]), {"type": "text", "text": TEXTS[2]}]
    found = rows(client.embeddings.create(model=NAME, input=mixed))
    np.testing.assert_array_equal(found[[0, 2, 4]], towers.embed_text(TEXTS))
    np.testing.assert_array_equal(found[[1, 3]], towers.embed(IMAGES[:2]))


def test_a_string_is_what_modality_says(client: OpenAI, towers: Embedder) -> None:
    """A long text without spaces would be taken for an image; an address would be refused as one."""
    for text in ("b" * 400, "https://example.org/a.png", uri(IMAGES[0])[:200]):
        answer = client.embeddings.create(model=NAME, input=text, extra_body={"modality": "text"})
        np.testing.assert_array_equal(rows(answer), towers.embed_text(text))
    written = " ".join(["blue checks"] * 40)  # as long as an image, with the letters of base64 alone
    np.testing.assert_array_equal(rows(client.embeddings.create(model=NAME, input=written)), towers.embed_text(written))


def test_any_batch_has_the_same_neighbours(url: str, towers: Embedder, pictures: Path) -> None:
    files = [path.read_bytes() for path in sorted(pictures.rglob("*.*")) if path.is_file()][:20]
    alone = np.concatenate([towers.embed(file) for file in files])
    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        for size in (1, 3, 20):
            found = np.concatenate(
                [
                    rows(client.embeddings.create(model=NAME, input=list(map(uri, files[start : start + size]))))
                    for start in range(0, len(files), size)
                ]
            )
            assert float(np.sum(found * alone, axis=1).min()) >= 0.999999
            assert np.array_equal(
                np.argsort(-found @ found.T, axis=1)[:, 1], np.argsort(-alone @ alone.T, axis=1)[:, 1]
            )


def test_the_models_are_listed(client: OpenAI, towers: Embedder) -> None:
    (listed,) = client.models.list().data
    assert listed == client.models.retrieve(NAME)
    assert (listed.id, listed.object) == (NAME, "model")
    assert listed.model_extra == {
        "dim": toys.DIM,
        "fingerprint": towers.card.fingerprint,
        "modalities": ["image", "text"],
    }
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("text-embedding-3-small")


BAD_REQUEST, NOT_FOUND = openai.BadRequestError, openai.NotFoundError
BAD = base64.b64encode(b"no image, but long enough to be one" * 20).decode()


@pytest.mark.parametrize(
    ("body", "kind", "code", "param"),
    [
        ({"input": [uri(IMAGES[0]), uri(b"junk"), uri(IMAGES[1])]}, BAD_REQUEST, "unreadable_image", "input[1]"),
        ({"input": [TEXTS[0], BAD]}, BAD_REQUEST, "unreadable_image", "input[1]"),
        ({"input": [TEXTS[0], " "]}, BAD_REQUEST, "invalid_text", "input[1]"),
        ({"input": [uri(b"")]}, BAD_REQUEST, "no_image", "input[0]"),
        ({"input": ["data:image/png;base64,!!"]}, BAD_REQUEST, "invalid_image", "input[0]"),
        ({"input": [TEXTS[0], "data:image/svg+xml,%3Csvg/%3E"]}, BAD_REQUEST, "invalid_image", "input[1]"),
        ({"input": [base64.urlsafe_b64encode(b"\xff" * 300).decode()]}, BAD_REQUEST, "invalid_image", "input[0]"),
        ({"input": [BAD + "A"]}, BAD_REQUEST, "invalid_image", "input[0]"),
        ({"input": [" https://example.org/a.png"]}, BAD_REQUEST, "image_address", "input[0]"),
        ({"input": ["https://example.org/a.png"]}, BAD_REQUEST, "image_address", "input[0]"),
        ({"input": [{"type": "image_url", "image_url": "file:///a"}]}, BAD_REQUEST, "image_address", "input[0]"),
        ({"input": [part(IMAGES[0]) | {"image": "x"}]}, BAD_REQUEST, "invalid_input", "input[0]"),
        ({"input": [[1, 2, 3]]}, BAD_REQUEST, "invalid_input", "input[0]"),
        ({"input": [1, 2, 3]}, BAD_REQUEST, "invalid_input", "input[0]"),
        ({"input": []}, BAD_REQUEST, "invalid_input", "input"),
        ({"input": ["a"] * 2049}, BAD_REQUEST, "invalid_input", "input"),
        ({"input": [uri(IMAGES[0])] * 33}, BAD_REQUEST, "too_many_images", "input"),
        ({"input": "a b" * 3400}, BAD_REQUEST, "text_too_long", "input[0]"),
        ({"input": "a", "dimensions": 4}, BAD_REQUEST, "invalid_dimensions", "dimensions"),
        ({"input": "a", "dimensions": 0}, BAD_REQUEST, "invalid_dimensions", "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, BAD_REQUEST, "invalid_encoding_format", "encoding_format"),
        ({"input": "a", "model": "ada"}, NOT_FOUND, "model_not_found", "model"),
        ({"input": "a", "extra_body": {"dimension": 4}}, BAD_REQUEST, "invalid_body", None),
        ({"input": None}, BAD_REQUEST, "invalid_body", None),
        ({"input": "a", "extra_query": {"dimensions": 4}}, BAD_REQUEST, "unknown_parameter", "dimensions"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_in_the_shape_of_openai(
    client: OpenAI, body: dict[str, Any], kind: type[openai.APIStatusError], code: str, param: str | None
) -> None:
    with pytest.raises(kind) as refused:
        client.embeddings.create(**{"model": NAME, **body})
    error = refused.value
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")
    assert param is None or param in error.message


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [part(IMAGES[0]), {"type": "text", "text": "Represent the image."}]}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "system", "content": "a"}],
        [],
    ],
)
def test_messages_are_of_one_image_or_one_text(url: str, messages: Any) -> None:
    answer = httpx.post(f"{url}/embeddings", json={"messages": messages}, headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 400
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_other_refusals_have_the_shape_too(url: str) -> None:
    with OpenAI(base_url=url, api_key="a-key-of-somebody-else", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.embeddings.create(model=NAME, input="a")
        assert (refused.value.code, refused.value.type) == ("wrong_key", "authentication_error")
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    for body in (b"", b"[", b"[" * 10_000, b'{"input": ' + b"[" * 5000, b"\xff", b'{"input": "\\ud800"}', b"null"):
        answer = httpx.post(f"{url}/embeddings", content=body, headers=headers)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for path in ("/nothing", "/completions"):
        answer = httpx.post(f"{url}{path}", content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


def test_json_of_too_many_values_is_refused_before_it_is_read(text_gallery: Path) -> None:
    with local_client(text_gallery) as client:
        for body in (b'{"input": [' + b"1," * 400_001 + b"1]}", b'{"input": "a", "x": ' + b"[" * 500_000):
            for path in ("/v1/embeddings", "/search", "/embed"):
                answer = client.post(path, content=body, headers={"content-type": "application/json"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large"), path


def test_a_model_without_a_text_tower_reads_any_string_as_an_image(gallery_folder: Path, model: Embedder) -> None:
    image = toys.query(0)
    with local_client(gallery_folder) as client:
        answer = client.post("/v1/embeddings", json={"input": base64.b64encode(image).decode()})
        np.testing.assert_array_equal(np.float32(answer.json()["data"][0]["embedding"]), model.embed(image)[0])
        refused = client.post("/v1/embeddings", json={"input": ["a red chair"]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_text_tower")


# Other clients

LITELLM = """
import json, sys
import litellm
name, url, key, images = json.loads(sys.argv[1])
for provider in ("openai", "hosted_vllm"):
    answer = litellm.embedding(model=f"{provider}/{name}", input=images, api_base=url, api_key=key)
    print(json.dumps([row["embedding"] for row in answer.data]))
try:
    litellm.embedding(model=f"openai/{name}", input=["data:image/png;base64,QUJD"], api_base=url, api_key=key)
except litellm.BadRequestError as error:
    assert "input[0]" in str(error), error
else:
    raise AssertionError("a bad image was embedded")
"""
LANGCHAIN = """
import json, sys
from langchain_openai import OpenAIEmbeddings
name, url, key, images = json.loads(sys.argv[1])
made = OpenAIEmbeddings(model=name, base_url=url, api_key=key, check_embedding_ctx_length=False, chunk_size=2)
print(json.dumps(made.embed_documents(images)))
print(json.dumps([made.embed_query(image) for image in images]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [LITELLM, LANGCHAIN], ids=["litellm", "langchain"])
def test_other_clients(url: str, towers: Embedder, script: str) -> None:
    """In a process of their own: they load a hundred packages, and leave connections open."""
    told = run_python(script, json.dumps([NAME, url, KEY, [uri(image) for image in IMAGES]]))
    answers = [json.loads(line) for line in told.splitlines() if line.startswith("[[")]
    assert len(answers) == 2
    for answer in answers:
        assert float(np.sum(np.array(answer, np.float32) * towers.embed(IMAGES), axis=1).min()) >= 0.999999


# Without a gallery


@pytest.fixture(scope="module")
def bare(towers: Embedder) -> Iterator[TestClient]:
    """A client of a service that embeds without a gallery."""
    chosen = settings(write_keys=KEY)
    endpoint = BareModel(lambda: Encoder(towers, DEFAULT_LIMITS), Keys.load(chosen))
    with TestClient(create_app(chosen, Collections([endpoint])), "http://localhost") as connected:
        yield connected


def test_a_model_is_served_without_a_gallery(bare: TestClient, towers: Embedder) -> None:
    image = toys.query(2)
    answer = bare.post("/v1/embeddings", json={"input": [uri(image)]})
    np.testing.assert_array_equal(np.float32(answer.json()["data"][0]["embedding"]), towers.embed(image)[0])
    assert bare.post("/embed", content=image).json()["fingerprint"] == towers.card.fingerprint
    assert bare.get("/v1/models").json()["data"][0]["id"] == NAME
    assert bare.get("/readyz").json() == {"ready": True}
    assert "zoo_requests_total" in bare.get("/metrics").text
    assert bare.get("/", follow_redirects=True).url.path == "/docs"
    described = bare.get("/openapi.json").json()["paths"]
    assert {*described} == {
        "/embed",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{name}",
        "/metrics",
        "/livez",
        "/readyz",
    }
    for path in ("/search", "/items", "/evaluate"):
        assert bare.post(path, json={}).json()["error"]["code"] == "not_found"


# Shorter embeddings


@pytest.mark.parametrize("name", ["photos", pytest.param("margin-lite0-cub2010-lda", marks=pytest.mark.slow)])
def test_dimensions_are_a_prefix_of_unit_length_where_the_numbers_are_in_order(name: str) -> None:
    """The numbers of whitening and of LDA are directions, the most important first."""
    model = load(name, runtime="auto", device="cpu")
    endpoint = BareModel(lambda: Encoder(model, DEFAULT_LIMITS))
    image = toys.query(1)
    with TestClient(create_app(settings(), Collections([endpoint])), "http://localhost") as client:
        body = {"input": uri(image), "dimensions": 64}
        found = np.float32(client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"])
        first = model.embed(image)[0, :64].astype(np.float64)
        np.testing.assert_allclose(found, first / np.sqrt(np.sum(first**2)), atol=1e-7)
        for dimensions in (model.dim + 1, -1, 2.5, "a"):
            answer = client.post("/v1/embeddings", json={"input": uri(image), "dimensions": dimensions})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_dimensions")
