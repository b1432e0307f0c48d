"""The progress bar: speed, loss, remaining time, and the start of a resumed run."""

from __future__ import annotations

import io

import pytest
import torch

from training import logging
from training.logging import ProgressBar


def test_the_bar_shows_throughput_loss_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 2.0, 5.0])
    monkeypatch.setattr(logging.time, "perf_counter", lambda: next(now))
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar("toy", total=30, done=10, batch_size=8) as bar:
        assert (bar.bar.n, bar.bar.total) == (10, 30)
        for _ in range(10):
            bar.step({"own": torch.tensor(0.5), "other": torch.tensor(0.25)})
        # Ten batches of eight in two seconds.
        assert bar.bar.postfix == "40 images/s, loss 0.750"
        assert bar.bar.format_dict["n"] == 20
        bar.validated({"recall_at_1": 0.625})
        assert bar.last == ", val R@1 0.625"
        bar.bar.refresh()
    assert "20/30" in stream.getvalue()
    assert "<" in stream.getvalue()  # elapsed < left


def test_the_bar_can_be_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("toy", 3, 0, 8, shown=False) as bar:
        for _ in range(20):
            bar.step({"own": torch.tensor(0.5)})
    assert not any(capsys.readouterr())
