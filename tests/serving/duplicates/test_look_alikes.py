"""Pictures that look alike are not copies of one another, and copies of them are found (`zoo duplicates`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.look_alikes import COPIES, LOOK_ALIKES, WITHOUT_STRUCTURE, draw, resave
from tests.commandline import run_here

Capture = pytest.CaptureFixture[str]


def groups(folder: Path, capsys: Capture) -> list[set[str]]:
    """Groups of file names that `zoo duplicates` finds; stdout holds nothing but JSON."""
    assert run_here("duplicates", folder, "--json") == 0
    return [{copy["source"] for copy in members} for members in json.loads(capsys.readouterr().out)["groups"]]


def write(folder: Path, kinds: list[str], count: int) -> None:
    for kind in kinds:
        for seed in range(count):
            draw(kind, seed).save(folder / f"{kind}-{seed}.png")


def test_invoices_marks_and_flat_pictures_are_no_copies_but_a_smaller_invoice_is(
    tmp_path: Path, capsys: Capture
) -> None:
    write(tmp_path, ["invoice", "mark", "flat"], 3)
    (tmp_path / "small.jpg").write_bytes(resave(draw("invoice", 1), "half"))
    assert groups(tmp_path, capsys) == [{"invoice-1.png", "small.jpg"}]


@pytest.mark.slow
def test_no_two_pictures_of_any_kind_are_copies(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, list(LOOK_ALIKES), 8)
    assert groups(tmp_path, capsys) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in LOOK_ALIKES if kind not in WITHOUT_STRUCTURE])
def test_copies_of_each_kind_are_found_among_look_alikes(kind: str, tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, [kind], 4)
    original = draw(kind, 0)
    for copy in COPIES[:2]:
        suffix = "png" if original.mode == "RGBA" else "jpg"
        (tmp_path / f"{copy}.{suffix}").write_bytes(resave(original, copy))
    (found,) = groups(tmp_path, capsys)
    assert {name for name in found if name.startswith(kind)} == {f"{kind}-0.png"}
    assert len(found) == 3
