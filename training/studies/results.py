"""results.jsonl: the results of the finished runs of a study or a search, one JSON object per line.

Earlier lines may be compressed beside it, in results.jsonl.gz, as in the folders of docs/studies.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.studies.study import GAP, Measure, lacks_view
from zoo.errors import TrainingError
from zoo.files import append_json_line, complete_lines

RESULTS_FILE = "results.jsonl"

Result = dict[str, Any]


def archived_lines(path: Path) -> list[bytes]:
    """Return the lines of the compressed file beside `path`, its name with .gz; none if it is missing."""
    try:
        return gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def has_results(folder: Path) -> bool:
    """Return whether a folder has a file of results, plain or compressed."""
    return any((folder / name).is_file() for name in (RESULTS_FILE, f"{RESULTS_FILE}.gz"))


class Results(Mapping[str, Result]):
    """The results in a folder by the run's name, such as "contrastive/seed-0", in the order in which runs finished.

    Several processes may append to one file. Each instance reads only the lines that were appended since its last
    read, so that a study of n runs reads n results and not n squared. Callers must not change the values.
    """

    def __init__(self, folder: Path, file: str = RESULTS_FILE) -> None:
        self.path = folder / file
        self._results: dict[str, Result] = {}
        self._inode, self._size = -1, 0

    def add(self, run: str, result: Mapping[str, Any]) -> None:
        """Append the result of a finished run."""
        append_json_line(self.path, {"run": run, **result})

    def __getitem__(self, run: str) -> Result:
        return self._current()[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def _current(self) -> dict[str, Result]:
        """Return all results, after reading lines that are new in the file."""
        try:
            status = self.path.stat()
            inode, size = status.st_ino, status.st_size
        except FileNotFoundError:
            inode, size = 0, 0
        if inode != self._inode or size < self._size:  # never read, another file, or one that was edited
            self._results = dict(self._parse(line) for line in archived_lines(self.path))
            self._inode, self._size = inode, 0
        if size == self._size:
            return self._results
        for line in complete_lines(self.path, self._size):
            run, result = self._parse(line)
            self._results[run] = result
            self._size += len(line) + 1
        return self._results

    def _parse(self, line: bytes) -> tuple[str, Result]:
        try:
            value = json.loads(line)
            return str(value.pop("run")), value
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            start = line[:60].decode(errors="replace")
            raise TrainingError(
                f"{self.path} has a line that is not the result of a run ({error!r}): {start!r}. "
                "Delete that line to run it again.",
                code="damaged-file",
            ) from None


def value_of(result: Mapping[str, Any], measure: Measure) -> float:
    """Return the value of a measure in a run's result.

    Raises:
        TrainingError: If the run did not measure it.
    """
    if measure.split == GAP:
        return value_of(result, measure.on("test")) - value_of(result, measure.on("train"))
    if (evaluation := evaluation_of(result, measure)) is not None:
        return float(evaluation["metrics"][measure.metric])
    raise TrainingError(
        f"the run of {result['arm']} with seed {result['seed']} has no {measure}: the study has more measures than "
        "when it was begun. Begin it again in another folder (--out).",
        code="no-results",
    )


def evaluation_of(result: Mapping[str, Any], measure: Measure) -> dict[str, Any] | None:
    """Find the measurement of a run that contains a measure of one split; None where it is missing."""
    return next((evaluation for evaluation in result["evaluations"] if _contains(evaluation, measure)), None)


def has_measure(result: Mapping[str, Any], measure: Measure) -> bool:
    """Return whether a run's result contains a measure on all its splits."""
    return all(evaluation_of(result, measure.on(split)) is not None for split in measure.splits)


def lacks_head(result: Mapping[str, Any], measure: Measure) -> bool:
    """Return whether a run's network has no head of the measure's view; False where its recipe is not recorded."""
    heads = [[head["name"] for head in recipe["heads"]] for recipe in result.get("resolved", ())]
    return any(lacks_view(names, measure.view) for names in heads)


def _contains(evaluation: Mapping[str, Any], measure: Measure) -> bool:
    same_rows = (evaluation["split"], evaluation["view"]) == (measure.split, measure.view)
    return same_rows and measure.metric in evaluation["metrics"]
