"""The image task of mteb, whose hit rate is our R@1."""

from __future__ import annotations

import pytest

import zoo


@pytest.mark.slow
def test_the_hit_rate_of_mteb_is_our_recall() -> None:
    from examples.mteb_glyphs import hit_rate

    expected = zoo.evaluate("margin-conv4-glyphs", "glyphs").metrics["recall_at_1"]
    assert hit_rate("margin-conv4-glyphs") == pytest.approx(expected, abs=1e-4)
