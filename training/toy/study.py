"""The toy in every form over several seeds: what is run, what is measured, and the means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from training.toy.lines import FORMS, LABELS, STEPS, Split, miner_of, train
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.density import inter_class_distance, intra_class_distance
from zoo.evaluation.structure import spectral_decay

PROBABILITIES = (0.001, 0.1, 0.4)


@dataclass(frozen=True)
class Setting:
    """A form of `FORMS` and rho's probability; trained is False for the net as it was initialised."""

    form: str
    probability: float = 0.0
    trained: bool = True

    @property
    def title(self) -> str:
        if not self.trained:
            return "untrained"
        if self.form == "none":
            return "no regularisation"
        if not self.probability:
            return "no positive term"
        changed = {"paper": "(a, p, p)", "published-miner": "(a, a, p)", "published-script": "no pos. term, (a, p, p)"}
        return f"{changed[self.form]}, p = {self.probability:g}"


@dataclass(frozen=True)
class Outcome:
    """One setting over the seeds 0, 1, ...: embeddings and measures of each."""

    setting: Setting
    embeddings: list[Split]
    measures: list[dict[str, float]]

    def mean(self, name: str) -> float:
        return float(np.mean(self.values(name)))

    def deviation(self, name: str) -> float:
        """The seeds' standard deviation, as of a sample."""
        return float(np.std(self.values(name), ddof=1))

    def values(self, name: str) -> list[float]:
        return [measured[name] for measured in self.measures]

    def to_json(self) -> dict[str, Any]:
        summary = {name: {"mean": self.mean(name), "sd": self.deviation(name)} for name in self.measures[0]}
        return {**asdict(self.setting), "title": self.setting.title, "summary": summary, "seeds": self.measures}


def settings_of(probabilities: Iterable[float]) -> list[Setting]:
    """The three runs without exchange, then every regularised form at every probability above 0.

    Raises `RecipeError` for a probability outside 0..1.
    """
    regularised = [name for name, form in FORMS.items() if form.rho]
    found = [Setting(name, p) for name in regularised for p in dict.fromkeys(probabilities) if p]
    for setting in found:
        miner_of(FORMS[setting.form], setting.probability)  # refuses a wrong probability before anything is trained
    return [Setting("none", trained=False), Setting("none"), Setting("published-script"), *found]


def run(settings: Sequence[Setting], seeds: int, steps: int = STEPS, progress: bool = True) -> list[Outcome]:
    """Train and measure every setting with the seeds 0 to seeds - 1."""
    outcomes = []
    with tqdm(total=len(settings) * seeds, unit="run", disable=not progress) as bar:
        for setting in settings:
            bar.set_description(setting.title)
            embeddings = []
            for seed in range(seeds):
                embeddings.append(
                    train(FORMS[setting.form], setting.probability, seed, steps if setting.trained else 0)
                )
                bar.update()
            outcomes.append(Outcome(setting, embeddings, [measure(split) for split in embeddings]))
    return outcomes


def measure(embeddings: Split) -> dict[str, float]:
    """Recall at 1, distances and their ratio for either split; the training embeddings' spectral decay."""
    found = {}
    for split, rows in zip(Split._fields, embeddings, strict=True):
        between, within = line_distances(rows)
        found[f"{split}_recall_at_1"] = retrieval_metrics(rows, LABELS, k=(1,))["recall_at_1"]
        found[f"{split}_between_lines"], found[f"{split}_within_lines"] = between, within
        # Closer than float32 can tell is not nearer: a line in one point has a large ratio, not an infinite one.
        found[f"{split}_separation"] = between / max(within, float(np.finfo(np.float32).eps))
    return {**found, "train_spectral_decay": spectral_decay(embeddings.train)}


def line_distances(rows: np.ndarray) -> tuple[float, float]:
    """Mean distance between the means of two lines, and mean distance of two samples of one line: rows [60, 2]."""
    return inter_class_distance(rows, LABELS), intra_class_distance(rows, LABELS)
