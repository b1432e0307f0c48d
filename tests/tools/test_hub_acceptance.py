"""The check of public baselines, on a Hub on loopback with small models in their published layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.zoo import joint_hub
from tests.zoo.hub_server import COMMIT
from tests.zoo.hub_state import Hub, Repository
from tools import hub_acceptance
from zoo.models import baselines

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with both small models and transformers' originals, and a table of baselines that states their sizes."""
    models = [joint_hub.clip(), joint_hub.siglip()]
    with joint_hub.joint_hub(tmp_path / "hub", monkeypatch, *models) as server:
        for model in models:
            files = joint_hub.original_files(model)
            name = hub_acceptance.ORIGINALS[model.name]
            server.repositories[name] = Repository({"main": COMMIT}, {COMMIT: files})
        rows = [joint_hub.table_row(model) for model in models]
        (tmp_path / "baselines.toml").write_text("\n".join(rows))
        monkeypatch.setattr(baselines, "BASELINES_FILE", tmp_path / "baselines.toml")
        baselines.baselines.cache_clear()
        yield server
    baselines.baselines.cache_clear()


def checks(out: Path, name: str) -> dict[str, bool]:
    row = json.loads((out / "report.json").read_text())["baselines"][name]
    return {check["name"]: check["ok"] for check in row["checks"]}


def test_models_that_are_as_published_pass_and_are_not_repeated(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert hub_acceptance.main(["--out", str(out)]) == 0
    for name in ("clip-b32", "siglip2-b16"):
        found = checks(out, name)
        assert {
            "preprocessing",
            "embeddings of timm",
            "texts of transformers",
            "images of transformers",
        } <= found.keys()
        assert set(found.values()) == {True}
        assert f"`{name}`" in (out / "report.md").read_text()
    before = len(hub.requests)
    assert hub_acceptance.main(["--out", str(out)]) == 0
    assert len(hub.requests) == before


def test_what_differs_fails_and_is_repeated(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "report"
    name = hub_acceptance.ORIGINALS["siglip2-b16"]
    good = dict(hub.repositories[name].files())
    other = joint_hub.original_files(joint_hub.siglip(), seed=8)  # the weights of another model
    hub.repositories[name].commit("main", {**good, "model.safetensors": other["model.safetensors"]})
    assert hub_acceptance.main(["--out", str(out), "--only", "siglip2-b16"]) == 1
    found = checks(out, "siglip2-b16")
    assert not found["texts of transformers"]
    assert not found["images of transformers"]
    assert found["embeddings of timm"]
    hub.repositories[name].commit("main", good)
    assert hub_acceptance.main(["--out", str(out), "--only", "siglip2-b16"]) == 0


def test_a_repository_that_is_not_there_is_a_failure(hub: Hub, tmp_path: Path) -> None:
    del hub.repositories[hub_acceptance.ORIGINALS["clip-b32"]]
    assert hub_acceptance.main(["--out", str(tmp_path / "report"), "--only", "clip-b32"]) == 1
    assert checks(tmp_path / "report", "clip-b32")["error"] is False
    with pytest.raises(SystemExit) as end:
        hub_acceptance.main(["--only", "no-such"])
    assert end.value.code == 2
