"""`make proof` itself: what passed is not run again, what failed says why, the figures go where they are wanted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.proof import __main__ as proof
from tests.proof.line import Line, request


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the runs of each part; "load" fails the first time."""
    counted: Counter[str] = Counter()

    def crash(out: Path, short: bool) -> dict[str, Any]:
        """Counts."""
        counted["crash"] += 1
        return {"flat kills": 400.0, "outcome": "2 passed"}

    def load(out: Path, short: bool) -> dict[str, Any]:
        """Fails, then passes."""
        counted["load"] += 1
        (out / "load").mkdir(exist_ok=True)
        (out / "load" / "load.json").write_text("what was measured")
        assert counted["load"] > 1, "memory grows"
        (out / "load" / "load.png").write_bytes(b"picture")
        phase = {"requests": 10, "statuses": {"200": 10}, "p50_ms": 1.0, "p99_ms": 2.0}
        return {
            "peak_per_second": 100,
            "share": 0.8,
            "steady": phase,
            "overload": phase,
            "recovered_s": 0.1,
            "memory_slope_mib_per_minute": [0.1, 0.2],
            "overload_goodput_of_peak": 0.9,
        }

    monkeypatch.setattr(proof, "PARTS", {"crash": crash, "load": load})
    return counted


def test_what_passed_is_not_run_again(runs: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kept", str(tmp_path / "kept"), "--out", str(tmp_path / "out")]
    assert proof.main(words) == 1
    assert "memory grows" in capsys.readouterr().out
    assert (tmp_path / "out" / "load.json").read_text() == "what was measured"  # what failed is looked at, too
    assert proof.main(words) == 0
    assert runs == {"crash": 1, "load": 2}
    assert "flat kills 400; 2 passed" in capsys.readouterr().out
    published = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert {name: one["passed"] for name, one in published.items()} == {"crash": True, "load": True}
    assert (tmp_path / "out" / "load.png").read_bytes() == b"picture"
    assert proof.main(["crash", *words]) == 0  # named, it runs again
    assert proof.main(["--short", *words]) == 0  # and so does another form
    assert runs == {"crash": 3, "load": 3}


def test_a_part_that_there_is_not(runs: Counter[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        proof.main(["speed", "--kept", str(tmp_path)])
    assert not runs


def test_a_line_that_the_service_has_closed_is_opened_anew() -> None:
    """A kept connection that nothing comes through for long is closed, and the next request does not fail by that."""
    connections = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def ask_twice() -> None:
        async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Line(f"http://127.0.0.1:{port}") as line:
                for _ in range(2):
                    assert await line.ask(request("/search")) == (200, b"{}")
                    assert line.streams is not None
                    while not line.streams[0].at_eof():
                        await asyncio.sleep(0.01)

    asyncio.run(ask_twice())
    assert len(connections) == 2
