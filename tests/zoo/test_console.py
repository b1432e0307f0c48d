"""Numbers with their nouns, and the progress of long work: an estimate, the time at the end, nothing for short work."""

from __future__ import annotations

import io
import sys

import pytest

from zoo.console import Progress, count, duration


class Clock:
    """Clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def work(clock: Clock, batches: int, total: int | None, shown: bool = True) -> None:
    """Process batches of 100 images: the first takes 3 seconds, each other one second."""
    with Progress("embed", total, shown) as bar:
        for batch in range(batches):
            clock.now += 3 if batch == 0 else 1
            bar.update(100)


def test_an_estimate_follows_the_first_images_and_the_time_comes_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    work(clock, 62, 6200)
    # Settled after 3 batches: 5900 are left, at 100 a second, without the slow first one. In all 3 s + 61 s.
    assert capsys.readouterr().err.splitlines() == [
        "zoo: embed: 6,200 images at about 100 a second: about 59 s left",
        "zoo: embed: 6,200 images in 1 min 4 s, 97 a second",
    ]


@pytest.mark.parametrize(("batches", "total", "shown"), [(2, 200, True), (62, 6200, False)])
def test_short_work_and_hidden_progress_print_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str], batches: int, total: int, shown: bool
) -> None:
    work(clock, batches, total, shown)
    assert capsys.readouterr().err == ""


def test_work_of_unknown_size_says_at_the_end_how_long_it_took(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    work(clock, 10, None)
    assert capsys.readouterr().err == "zoo: embed: 1,000 images in 12 s, 83 a second\n"


def test_an_error_is_not_followed_by_a_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), Progress("embed", 10) as bar:
        clock.now += 100
        bar.update(5)
        raise ValueError("broken")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("embed", 10) as bar:
        bar.update(10)
    assert "10/10" in terminal.getvalue()
    assert "zoo:" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (137, "2 min 17 s"), (3900, "1 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "epoch", "1 epoch"),
        (0, "epoch", "0 epochs"),
        (1, "class", "1 class"),
        (2000, "class", "2,000 classes"),
        (2, "search", "2 searches"),
        (2, "batch", "2 batches"),
        (2, "training class", "2 training classes"),
    ],
)
def test_a_number_and_its_noun_agree(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


def test_an_irregular_plural_is_given() -> None:
    assert (count(1, "query", "queries"), count(3, "query", "queries")) == ("1 query", "3 queries")
