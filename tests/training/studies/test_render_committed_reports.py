"""The committed reports of docs/studies are what the code renders from their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.studies.plan import read_plan
from training.studies.render import as_markdown
from training.studies.report import build_report

STUDIES = sorted(path.parent for path in (Path(__file__).parents[3] / "docs" / "studies").glob("*/plan.json"))


@pytest.mark.slow  # `test_report.py` renders small ones
@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_the_committed_report_is_rendered_from_the_results(folder: Path) -> None:
    report = build_report(read_plan(folder), folder)
    assert as_markdown(report) == (folder / "report.md").read_text(encoding="utf-8")
