"""Figures of a model's heads over several seeds, compared with means and Student's intervals by hand."""

from __future__ import annotations

import math

from tools.glyph_factors import by_model, lines


def report(model: str, first: float, second: float) -> dict[str, object]:
    heads = {"class": {"ink": first}, "shared": {"ink": second, "correlation_with_class": 2 * second}}
    return {"model": model, "heads": heads, "chance": {}}


REPORTS = [
    report("diva-seed0", 0.1, 0.2),
    report("diva-seed1", 0.3, 0.5),
    report("plain-seed1", 0.3, 0.1),
    report("plain-seed0", 0.1, 0.1),
    report("alone", 0.9, 0.9),
]


def test_reports_are_gathered_by_model_and_seed() -> None:
    models = by_model(REPORTS)
    assert list(models) == ["diva", "plain"]
    assert models["diva"] == {
        ("class", "ink"): {0: 0.1, 1: 0.3},
        ("shared", "ink"): {0: 0.2, 1: 0.5},
        ("shared", "correlation_with_class"): {0: 0.4, 1: 1.0},
    }


def test_means_intervals_and_paired_differences() -> None:
    printed = [line.split() for line in lines(REPORTS)]
    # Two values: half their distance times t(0.975; 1 degree of freedom) = 12.706, the same as sd / sqrt(2) times it.
    # Intervals end where a share, 0 to 1, and a difference of shares end.
    assert 0.1 * 12.7062 > 1
    assert printed[0] == ["diva,", "2", "seeds"]
    assert printed[1] == ["class", "ink", "0.200", "(0.000", "to", "1.000)"]
    less = printed[printed.index(["diva:", "less", "its", "head", "'class'"]) + 1]
    mean, half = (0.1 + 0.2) / 2, 0.05 * 12.7062
    assert less == ["shared", "ink", f"{mean:+.3f}", f"({mean - half:+.3f}", "to", f"{mean + half:+.3f})"]
    models = printed[printed.index(["plain", "less", "diva"]) + 2]
    assert models == ["shared", "ink", f"{(-0.1 - 0.4) / 2:+.3f}", "(-1.000", "to", "+1.000)"]


def test_one_seed_has_no_interval_and_models_without_seeds_are_left_out() -> None:
    assert not list(lines([report("alone", math.pi, 1.0)]))
    assert "(" not in "".join(lines([report("diva-seed4", 0.1, 0.2)]))
