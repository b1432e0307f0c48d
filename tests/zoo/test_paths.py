"""Paths of this machine in published records: cut to their last part."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.paths import without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ann/models/ft", "ft"),
        ("/home/ann/my models/my ft/", "my ft"),
        ("~/models/ft", "ft"),
        ("~ann/models/ft", "ft"),
        (
            "there is no folder /home/ann/cub; name another, or /srv/data.",
            "there is no folder cub; name another, or data.",
        ),
        ("not in '/home/ann/.cache/hub' (HF_HOME=/srv/hub)", "not in 'hub' (HF_HOME=hub)"),
        ("looked in:/srv/a,/srv/b", "looked in:a,b"),
        ("../secretclient/acme", "acme"),
        ("./models/ft", "ft"),
        ("file:///home/ann/secret/x y", "x y"),
        ("read of file:///home/ann/secret/x.", "read of x."),
    ],
)
def test_a_path_is_cut_to_its_last_part(text: str, expected: str) -> None:
    assert without_paths(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        "org/name@0123abc",
        "https://huggingface.co/org/name: see http://127.0.0.1:80/x",
        "train/test, 3/4 of them, and/or ./here or ../there",
        "~5 images / class",
        "margin-conv4-glyphs",
        "",
        3,
        0.5,
        None,
        True,
    ],
)
def test_values_that_are_not_full_paths_stay(value: object) -> None:
    assert without_paths(value) == value


def test_all_texts_of_a_record_are_cut_except_labels() -> None:
    record: dict[str, Any] = {
        "recipe": {"backbone": {"pretrained": "/home/ann/ft"}, "seed": 0},
        "skipped": ["/home/ann/a.jpg", "b/c.jpg"],
        "split": {"train_classes": ["/m/01g317"], "test_share": 0.3},
    }
    assert without_paths(record) == {
        "recipe": {"backbone": {"pretrained": "ft"}, "seed": 0},
        "skipped": ["a.jpg", "b/c.jpg"],
        "split": {"train_classes": ["/m/01g317"], "test_share": 0.3},
    }
    assert record["skipped"][0] == "/home/ann/a.jpg"
