"""`assert_attributed`: a measurement says what was measured, of which images, how and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from zoo.models.card import Card


def assert_attributed(evaluation: Mapping[str, Any], card: Card) -> None:
    """Assert that an evaluation as JSON names model, images, split, protocol, runtime, precision and date."""
    assert (evaluation["model"], evaluation["fingerprint"]) == (card.name, card.fingerprint)
    assert evaluation["data"]["name"]
    assert len(evaluation["data"]["sha256"]) == 64
    assert all(evaluation[key] for key in ("split", "protocol", "runtime", "precision"))
    assert datetime.fromisoformat(evaluation["date"]).tzinfo is not None
