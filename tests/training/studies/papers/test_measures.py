"""Measures that studies report together."""

from __future__ import annotations

from training.studies.papers import STUDIES, find_study
from training.studies.plan import Plan
from training.studies.render import measure_title
from training.studies.report import correlate_measures
from training.studies.study import R1, Measure


def test_nmi_is_followed_by_nmi_of_random_embeddings() -> None:
    for study in STUDIES.values():
        for measure in study.measures:
            if measure.metric == "nmi":
                beside = Measure("nmi_random", measure.split, measure.view)
                assert study.measures.index(beside) == study.measures.index(measure) + 1, study.name


def test_nmi_of_random_embeddings_correlates_with_nothing() -> None:
    study = find_study("revisiting/figure-4")
    values = {arm.label: {0: 0.1 * number} for number, arm in enumerate(study.arms)}
    tables = dict.fromkeys((R1, Measure("nmi"), Measure("nmi_random")), values)
    correlations = correlate_measures(Plan(study, "glyphs", 1), "last", tables, {})
    assert [(a, b) for _, a, b, _ in correlations] == [("test recall_at_1", "test nmi")]
    assert measure_title(Measure("nmi_random")) == "NMI of random embeddings on test"
