from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import toys
from tests.zoo import exact_layer
from tests.zoo.hub_client import FILES, World, connected
from zoo.evaluation import knn_int8
from zoo.evaluation.knn_int8 import coarse_products_work


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def toy(own_zoo: Path) -> Path:
    """Return the folder of a small model in the local zoo, toy-pool."""
    return toys.write_model(own_zoo / "models" / "toy-pool")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A Hub with the shipped model as org/toy, nothing of it in the cache, and no token.

    It offers Xet and the client would take it, as they do outside.
    """
    for variable in ("HF_TOKEN", "HF_HUB_DISABLE_XET"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    with connected(monkeypatch, tmp_path / "cache") as (hub, waits):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
        hub.add("org/toy", FILES)
        hub.xet = True
        yield World(hub, waits, tmp_path / "cache")


@pytest.fixture
def int8(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable `Int8Products` without VNNI, where they are slow; exact ones if torch's are not exact."""
    monkeypatch.setattr(knn_int8, "_processor_has_int8", lambda: True)
    if not knn_int8.can_multiply_int8(64):
        monkeypatch.setattr("torch._int_mm", exact_layer.multiply)
    knn_int8._sums_are_exact.cache_clear()
    yield
    knn_int8._sums_are_exact.cache_clear()


@pytest.fixture
def exact_coarse_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace torch's layer by an exact one, and clear what was cached of either."""
    exact_layer.install(monkeypatch)
    coarse_products_work.cache_clear()
    yield
    coarse_products_work.cache_clear()


@pytest.fixture
def prefilter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable `PrefilteredProducts` on any processor, with an exact layer if torch's is not exact."""
    monkeypatch.setattr(knn_int8, "_processor_has_avx2", lambda: True)
    if not coarse_products_work(knn_int8.AVX2_LARGEST):
        request.getfixturevalue("exact_coarse_products")
