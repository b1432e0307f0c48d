from __future__ import annotations

from pathlib import Path

import pytest

from examples.plain_loop import main
from tests.training.cached.pictures import write_pictures


@pytest.mark.slow
def test_the_loop_learns_glyphs(capsys: pytest.CaptureFixture[str]) -> None:
    scores = main(["--steps", "60"])
    assert scores["after"]["recall_at_1"] > scores["before"]["recall_at_1"] + 0.2
    assert "600 images of 30 classes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        ("TripletMarginLoss", "SemihardMiner"),
        ("MultiSimilarityLoss", "MultiSimilarityMiner"),
        ("ProxyAnchorLoss", "none"),
        ("MarginLoss", "RhoMiner"),
        ("TripletMarginLoss", "TripletMarginMiner"),
    ],
)
def test_the_loop_takes_a_folder_and_other_losses_and_miners(tmp_path: Path, loss: str, miner: str) -> None:
    write_pictures(tmp_path)
    scores = main(["--images", str(tmp_path), "--loss", loss, "--miner", miner, "--steps", "2", "--dim", "8"])
    assert 0 <= scores["after"]["recall_at_1"] <= 1
