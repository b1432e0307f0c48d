"""What others are to read holds the last part of this machine's paths, and all else as it was."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.paths import without_paths


@pytest.mark.parametrize(
    ("said", "told"),
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
def test_a_path_is_cut_to_its_last_part(said: str, told: str) -> None:
    assert without_paths(said) == told


@pytest.mark.parametrize(
    "said",
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
def test_what_is_no_full_path_stays(said: object) -> None:
    assert without_paths(said) == said


def test_all_of_a_record_is_looked_at_but_labels() -> None:
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
