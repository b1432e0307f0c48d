from __future__ import annotations

from pathlib import Path

import pytest

from serving.galleries import COLLECTIONS, GALLERY, MODEL, Place, doubled, from_environment, from_words, to_environment
from tests.commandline import run_here
from tests.raising import raises
from zoo.errors import UsageError


def test_one_gallery_needs_no_name(tmp_path: Path) -> None:
    assert from_words([str(tmp_path)]) == [Place("", str(tmp_path))]
    assert from_words([str(tmp_path)], ["mine"]) == [Place("", str(tmp_path), "mine")]
    assert from_words([str(tmp_path)], ["/models/a=b"]) == [Place("", str(tmp_path), "/models/a=b")]


def test_several_have_names_and_models_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = from_words(["birds=a", "old-cars=b=c"], ["birds=org/model"])
    assert found == [Place("birds", str(tmp_path / "a"), "org/model"), Place("old-cars", str(tmp_path / "b=c"))]
    assert from_words(["birds=a"]) == [Place("birds", str(tmp_path / "a"))]


def test_a_folder_with_a_sign_in_its_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert from_words(["a=b"])[0].name == from_words(["./c=d"])[0].name == ""


@pytest.mark.parametrize(
    ("galleries", "models", "part"),
    [
        (["a", "b"], [], "name"),
        (["x=a", "b"], [], "name"),
        (["x=a", "x=b"], [], "name x"),
        (["Birds=a"], [], "'Birds=a'"),
        (["x_y=a"], [], "'x_y=a'"),
        (["=a"], [], "'=a'"),
        (["x="], [], "'x='"),
        (["x=a"], ["y=m"], "--model y"),
        (["x=a", "z=b"], ["m"], "x, z"),
    ],
)
def test_words_that_name_no_gallery_or_model(galleries: list[str], models: list[str], part: str) -> None:
    with raises(UsageError) as caught:
        from_words(galleries, models)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "places",
    [
        [Place("", "/a")],
        [Place("", "/a", "model")],
        [Place("birds", "/a"), Place("cars", "/b: c\n,", "org/model@1")],
    ],
)
def test_the_environment_says_the_same(places: list[Place]) -> None:
    assert from_environment(to_environment(places)) == places


def test_an_environment_that_says_nothing_or_nonsense() -> None:
    assert from_environment({}) == from_environment({GALLERY: "", COLLECTIONS: ""}) == []
    for text in ("[]", "{}", "birds", '{"birds": "a"}', '{"birds": {}}', '{"Birds!": {"gallery": "a"}}', "[1]", "null"):
        with raises(UsageError) as caught:
            from_environment({COLLECTIONS: text})
        assert COLLECTIONS in str(caught.value)
    with raises(UsageError) as caught:
        from_environment({GALLERY: "a", COLLECTIONS: '{"b": {"gallery": "b"}}', MODEL: "m"})
    assert GALLERY in str(caught.value)


def test_two_names_of_one_folder_are_seen(tmp_path: Path) -> None:
    words = [f"a={tmp_path}", "b=elsewhere", f"c={tmp_path}/x/.."]
    assert doubled(from_words(words)) == [["a", "c"]]
    assert doubled(from_words([str(tmp_path)])) == []


def test_one_folder_under_two_names_is_reported(
    gallery_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serving.server.serve", lambda *given: None)
    assert run_here("serve", f"a={gallery_folder}", f"b={gallery_folder}") == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert "a and b" in warning
    assert run_here("serve", gallery_folder) == 0
    assert capsys.readouterr().err == ""
