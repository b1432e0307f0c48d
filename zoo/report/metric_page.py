"""What each metric sees, as one HTML page that asks for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.report import pictures
from zoo.report.metric_examples import METRICS, RANKED, RELATIVES, Embedded, Ranked, percent
from zoo.report.metric_picture import ABOUT
from zoo.report.page import Section, page, paragraph, picture, table


def as_html(embedded: Sequence[Embedded], ranked: Sequence[Ranked]) -> str:
    scores = [[each.name, *(percent(each.metrics[name]) for name in METRICS)] for each in embedded]
    found = [[each.name, *(percent(each.metrics[name]) for name in RANKED)] for each in ranked]
    sections = [
        Section(
            "Three embeddings", paragraph(" ".join(ABOUT)) + table(("%", *METRICS.values()), scores, METRICS.values())
        ),
        *map(_drawn, embedded),
        Section(
            f"A query with {RELATIVES} relatives, by what it finds",
            table(("%", *RANKED.values()), found, RANKED.values()),
            "half",
        ),
    ]
    return page("What each metric sees", sections)


def _drawn(each: Embedded) -> Section:
    image = pictures.embedding_map(each.points, each.labels)
    return Section(each.name.capitalize(), picture(image, "image/png", f"Points of classes: {each.name}"), "half")
