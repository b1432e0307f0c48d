"""Health of a run by name: `zoo.doctor`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.health.diagnosis import Finding, History, diagnose
from training.health.page import check_page, write_page
from training.health.run_folder import find_run, read_history
from zoo.models.registry import ModelLike, model_text
from zoo.paths import expand


@dataclass(frozen=True, repr=False)
class RunHealth:
    """The diagnosis of a training run.

    Attributes:
        folder: The folder of the run, or of its model.
        history: Its records.
        findings: Each indicator that left its healthy range; none for a run that is healthy or too short to judge.
    """

    folder: Path
    history: History
    findings: list[Finding]

    def __repr__(self) -> str:
        found = ", ".join(finding.code for finding in self.findings) or "no findings"
        return f"RunHealth({str(self.folder)!r}: {found})"

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.folder),
            "healthy": not self.findings,
            "judged": self.history.judged,
            "findings": [finding.to_json() for finding in self.findings],
            "start": dict(self.history.start),
            "epochs": [
                {"epoch": record["epoch"], "recall_at_1": record.get("validation_recall_at_1"), **record["indicators"]}
                for record in self.history.records
                if record.get("indicators")
            ],
            "diverged": dict(self.history.divergence) or None,
        }


def doctor(run: ModelLike, out: str | os.PathLike[str] | None = None) -> RunHealth:
    """Say whether a training run is healthy, and which setting to try if not.

    >>> watched = zoo.train("margin-conv4-glyphs", name="watched")
    >>> for finding in zoo.doctor(watched).findings:
    ...     print(finding.text())

    Args:
        run: A model that was trained here, the newest run of that name, or the folder of a run.
        out: Also write a page with plots and findings to this .html file.

    Raises:
        ModelNotFoundError: If there is neither.
        UsageError: If the run has no indicators (`no-results`), or the page another suffix.
    """
    page = None if out is None else expand(out)
    if page is not None:
        check_page(page)
    folder = find_run(model_text(run))
    history = read_history(folder)
    health = RunHealth(folder, history, diagnose(history))
    if page is not None:
        write_page(page, folder.name, history, health.findings)
    return health
