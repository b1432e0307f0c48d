"""Who is asked answers over a real socket; the clock is ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.pulse import EVERY, LONGEST_START, Pulse


@pytest.fixture
def pulse(tmp_path: Path) -> Iterator[Pulse]:
    made = Pulse(tmp_path / "pulse")
    made.listening.settimeout(5)
    yield made
    made.close()


def answer(pulse: Pulse, what: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> bytes:
    connection, _ = pulse.listening.accept()
    with connection:
        question = connection.recv(1000)
        connection.sendall(what)
    return question


def silent_for(pulse: Pulse, start: float, seconds: float, limit: float) -> list[bool]:
    """Looked at ten times a second."""
    return [pulse.hangs(start + 0.1 * i, limit) for i in range(1, round(10 * seconds) + 1)]


def test_who_answers_does_not_hang(pulse: Pulse) -> None:
    now = 0.0
    for _ in range(5):
        assert not pulse.hangs(now, 2)
        assert answer(pulse).startswith(b"GET /livez HTTP/1.1\r\n")
        assert not pulse.hangs(now + 0.1, 2)
        assert pulse.silent == 0
        now += 0.1 + EVERY


def test_who_has_answered_and_is_silent_hangs(pulse: Pulse) -> None:
    pulse.hangs(0.0, 2)
    answer(pulse)
    assert not pulse.hangs(0.1, 2)
    told = silent_for(pulse, 0.1, 3, 2)
    assert told.index(True) == pytest.approx(20, abs=1), "two seconds later"
    pulse.begin(10.0)
    assert not any(silent_for(pulse, 10.0, 3, 2)), "the next process has yet to start"


@pytest.mark.parametrize("what", [b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"])
def test_who_does_not_say_that_it_lives_is_silent(pulse: Pulse, what: bytes) -> None:
    pulse.hangs(0.0, 2)
    answer(pulse)
    pulse.hangs(0.1, 2)
    pulse.hangs(0.2 + EVERY, 2)
    answer(pulse, what)
    pulse.hangs(0.3 + EVERY, 2)
    assert pulse.silent > 1


def test_a_start_may_take_its_time_but_not_for_ever(pulse: Pulse) -> None:
    told = [pulse.hangs(float(second), 2) for second in range(1, round(LONGEST_START) + 10)]
    assert told.index(True) == pytest.approx(LONGEST_START, abs=1)


def test_a_supervisor_that_was_stopped_itself_blames_nobody(pulse: Pulse) -> None:
    pulse.hangs(0.0, 3)
    answer(pulse)
    assert not pulse.hangs(0.1, 3)
    assert not pulse.hangs(5000.0, 3)
