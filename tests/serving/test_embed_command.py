"""`zoo serve --embed`: a model over HTTP without a gallery, as a process."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from unittest.mock import patch

import httpx
import numpy as np
import pytest
from openai import OpenAI

from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import serving
from zoo.errors import ModelNotFoundError, UsageError
from zoo.models.load import Embedder

READER = "read-key-of-the-embedder"


@pytest.mark.slow
def test_two_workers_embed_for_the_openai_client(model: Embedder) -> None:
    images = [toys.query(kind) for kind in range(4)]
    keys = {"ZOO_SERVE_READ_KEYS": READER}
    with serving([], "--embed", model.folder, "--workers", 2, environment=keys) as running:
        with OpenAI(base_url=f"{running.url}/v1", api_key=READER, max_retries=0) as client:
            for _ in range(6):  # each worker gets some
                uris = [f"data:image/png;base64,{base64.b64encode(image).decode()}" for image in images]
                answer = client.embeddings.create(model=model.card.name, input=uris)
                np.testing.assert_array_equal(np.float32([row.embedding for row in answer.data]), model.embed(images))
        assert httpx.post(f"{running.url}/v1/embeddings", json={"input": uris[0]}).status_code == 401
        assert httpx.get(f"{running.url}/readyz").status_code == 200
        assert running.stop() == 0


def test_a_service_has_galleries_or_a_model(model: Embedder, gallery_folder: Path) -> None:
    with patch.dict(os.environ):
        check_refusals(model, gallery_folder)


def check_refusals(model: Embedder, gallery_folder: Path) -> None:
    for words in ((), (gallery_folder, "--embed", model.folder)):
        with raises(UsageError, "missing-value"):
            run_here("serve", *words)
    with raises(UsageError, "missing-value"):
        run_here("serve", "--embed", model.folder, "--model", model.folder)
    with raises(ModelNotFoundError):
        run_here("serve", "--embed", model.folder / "nothing")
    for origins in (
        *("shop.example", "https://shop.example/a", "https://a,b", "https://a b", "null", "https://*.shop.example"),
        *("https://", "https://a@shop.example", "https://shop..example", "https://m\xfcller.example", "file://a"),
    ):
        with raises(UsageError, "invalid-value", origins):
            run_here("serve", "--embed", model.folder, "--origins", origins)
