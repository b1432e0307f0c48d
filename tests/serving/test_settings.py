from __future__ import annotations

from pathlib import Path

import pytest

from serving.keys import Keys
from serving.settings import (
    COLLECTIONS,
    GALLERY,
    HOSTS,
    MODEL,
    READ_KEYS,
    WRITE_KEYS,
    GalleryAddress,
    Settings,
    gallery_variables,
    parse_galleries,
    read_keys_file,
    same_folders,
)
from tests.commandline import command_named, run_here
from tests.raising import raises
from tests.serving.running import run
from tests.serving.running import settings as loaded
from zoo.errors import UsageError
from zoo.models.onnx_runtime import GRAPH_FILES

READER, WRITER, BIRDS = "r" * 20, "w=" * 10, "b" * 20


def test_values_come_from_the_environment_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_SERVE_MAX_K", "7")
    settings = loaded({"ZOO_SERVE_RATE": "2.5", "ZOO_DEVICE": "cuda", "PATH": "/bin"})
    assert (settings.rate, settings.device, settings.max_k) == (2.5, "cuda", 1000)
    assert Settings.load().max_k == 7


@pytest.mark.parametrize("text", ["", "ten", "-1", "nan", "inf", "1.5", "0"])
def test_a_wrong_value_is_refused_with_its_variable(text: str) -> None:
    with raises(UsageError, "invalid-value") as caught:
        loaded({"ZOO_SERVE_MAX_K": text})
    assert "ZOO_SERVE_MAX_K" in str(caught.value)


@pytest.mark.parametrize("text", ["0", "257", "two"])
def test_the_number_of_workers_is_bounded(text: str) -> None:
    with raises(UsageError, "invalid-value"):
        loaded({"ZOO_SERVE_WORKERS": text})


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("ZOO_SERVE_MAX_PIXEL", "ZOO_SERVE_MAX_PIXELS"),
        ("ZOO_SERVE_PRECISION", "ZOO_PRECISION"),
        ("ZOO_SERVE_READ_KEY", "ZOO_SERVE_READ_KEYS"),
        ("ZOO_SERVE_COLLECTION_KEYS", "ZOO_COLLECTIONS"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_one(variable: str, suggestion: str) -> None:
    with raises(UsageError, "unknown-setting") as caught:
        loaded({variable: "5"})
    assert f"'{suggestion}" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("ZOO_SERVE_KEY", WRITE_KEYS),
        ("ZOO_SERVE_HANG_SECONDS", "removed"),
        ("ZOO_SERVE_PORT", "--port"),
        ("ZOO_SERVE_HOST", "--host"),
        (f"{WRITE_KEYS}_BIRDS", "no name"),
        ("ZOO_SERVE_COLOUR", "docs/serve.md"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_advice(variable: str, advice: str) -> None:
    with raises(UsageError, "unknown-setting") as caught:
        loaded({variable: READER})
    assert advice in str(caught.value)
    assert READER not in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--max-k", "x", "a whole number of at least 1"),
        ("--workers", "0", "a whole number from 1 to 256"),
        ("--log-requests", "yes", "a whole number of at least 0"),
        ("--rate", "inf", "a number of at least 0"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_own_name(
    flag: str, value: str, expected: str, gallery_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GALLERY, "")  # the command sets it
    with raises(UsageError, "invalid-value") as caught:
        run_here("serve", gallery_folder, flag, value)
    assert str(caught.value).startswith(f"{flag} ")
    assert expected in str(caught.value)


def test_keys_of_a_collection_are_settings_only_if_it_is_served() -> None:
    environment = {COLLECTIONS: '{"old-cars": {"gallery": "a"}}', f"{READ_KEYS}_OLD_CARS": READER}
    settings = loaded({**environment, WRITE_KEYS: BIRDS, HOSTS: "a, b"})
    assert Keys.load(settings, "old-cars").may_read(READER)
    assert READER not in repr(settings)
    with raises(UsageError, "unknown-setting"):
        loaded({**environment, f"{READ_KEYS}_FISH": READER})


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
def test_all_workers_together_keep_to_the_limits(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    share = loaded(workers=workers, concurrency=32, rate=12.0, burst=20).share()
    assert workers * share.rate == pytest.approx(12)
    for part, whole in ((share.concurrency, 32), (share.burst, 20), (share.cores, 8)):
        assert part >= 1
        assert workers * part <= max(whole, workers)
        assert workers * (part + 1) > whole
    assert loaded(workers=4).share().rate == 0


def test_every_number_is_a_flag_of_the_command() -> None:
    flags = {flag for option in command_named("serve").params for flag in option.opts}
    for name, field in Settings.model_fields.items():
        if field.annotation in (int, float):
            assert f"--{name.replace('_', '-')}" in flags


def test_the_flag_of_the_precision_offers_what_the_service_accepts() -> None:
    (flag,) = (option for option in command_named("serve").params if "--precision" in option.opts)
    assert all(name in flag.help for name in GRAPH_FILES)
    assert "bf16" not in flag.help


def test_one_gallery_needs_no_name(tmp_path: Path) -> None:
    assert parse_galleries([str(tmp_path)]) == [GalleryAddress("", str(tmp_path))]
    assert parse_galleries([str(tmp_path)], ["mine"]) == [GalleryAddress("", str(tmp_path), "mine")]
    assert parse_galleries([str(tmp_path)], ["/models/a=b"]) == [GalleryAddress("", str(tmp_path), "/models/a=b")]


def test_several_galleries_have_names_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    birds = GalleryAddress("birds", str(tmp_path / "a"), "org/model")
    cars = GalleryAddress("old-cars", str(tmp_path / "b=c"))
    assert parse_galleries(["birds=a", "old-cars=b=c"], ["birds=org/model"]) == [birds, cars]
    (tmp_path / "x=y").mkdir()
    assert parse_galleries(["x=y"])[0].name == parse_galleries(["./c=d"])[0].name == ""


@pytest.mark.parametrize(
    ("words", "models", "code"),
    [
        (["a", "b"], [], "missing-value"),
        (["x=a", "b"], [], "missing-value"),
        (["x=a", "x=b"], [], "conflicting-options"),
        (["Birds=a"], [], "invalid-value"),
        (["x_y=a"], [], "invalid-value"),
        (["=a"], [], "invalid-value"),
        (["x="], [], "invalid-value"),
        (["x=a"], ["y=m"], "missing-value"),
        (["x=a", "z=b"], ["m"], "missing-value"),
    ],
)
def test_words_that_name_no_gallery_or_model_are_refused(words: list[str], models: list[str], code: str) -> None:
    with raises(UsageError, code):
        parse_galleries(words, models)


@pytest.mark.parametrize(
    "addresses",
    [
        [GalleryAddress("", "/a")],
        [GalleryAddress("", "/a", "model")],
        [GalleryAddress("birds", "/a"), GalleryAddress("cars", "/b: c\n,", "org/model@1")],
    ],
)
def test_workers_read_the_same_galleries_from_the_environment(addresses: list[GalleryAddress]) -> None:
    assert loaded(gallery_variables(addresses)).addresses == addresses


@pytest.mark.parametrize("text", ["[1]", "birds", '{"birds": "a"}', '{"birds": {}}', '{"Birds!": {"gallery": "a"}}'])
def test_collections_that_cannot_be_read_are_refused(text: str) -> None:
    with raises(UsageError, "invalid-value"):
        loaded({COLLECTIONS: text})


def test_a_service_has_one_gallery_or_named_ones() -> None:
    assert loaded({}).addresses == loaded({GALLERY: "", COLLECTIONS: ""}).addresses == []
    with raises(UsageError, "conflicting-options"):
        loaded({GALLERY: "a", COLLECTIONS: '{"b": {"gallery": "b"}}', MODEL: "m"})


def test_one_folder_under_two_names_is_reported(
    gallery_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert same_folders(parse_galleries(["a=/x", "b=elsewhere", "c=/x/y/.."])) == [["a", "c"]]
    monkeypatch.setattr("serving.run.serve", lambda *given: None)
    assert run_here("serve", f"a={gallery_folder}", f"b={gallery_folder}") == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert "a and b" in warning
    assert run_here("serve", gallery_folder) == 0
    assert capsys.readouterr().err == ""


def write_keys(folder: Path, text: str, mode: int = 0o600) -> None:
    (folder / "keys").write_text(text)
    (folder / "keys").chmod(mode)


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    write_keys(tmp_path, f"# of 2026\n\n{READ_KEYS}={READER}, {BIRDS}\n {WRITE_KEYS}_BIRDS = '{WRITER}'\n")
    variables = read_keys_file(tmp_path / "keys")
    assert variables == {READ_KEYS: f"{READER}, {BIRDS}", f"{WRITE_KEYS}_BIRDS": WRITER}
    settings = loaded({**variables, COLLECTIONS: '{"birds": {"gallery": "a"}, "cars": {"gallery": "b"}}'})
    birds, cars = Keys.load(settings, "birds"), Keys.load(settings, "cars")
    assert birds.may_write(WRITER)
    assert birds.may_read(READER)
    assert not cars.may_write(WRITER)
    assert not cars.may_read(WRITER)


@pytest.mark.parametrize("text", [READER, f"ZOO_SERVE_RATE={READER}", f"PATH={READER}", f"{READ_KEYS} {READER}", "kéy"])
def test_a_file_of_something_else_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    write_keys(tmp_path, f"# keys\n{text}\n")
    with raises(UsageError, "invalid-keys") as refused:
        read_keys_file(tmp_path / "keys")
    assert READER not in str(refused.value)
    with raises(UsageError, "unreadable-file"):
        read_keys_file(tmp_path / "none")


@pytest.mark.slow
def test_the_command_takes_the_file(tmp_path: Path, gallery_folder: Path) -> None:
    write_keys(tmp_path, f"{READ_KEYS}_FISH={READER}\n")
    outcome = run("serve", f"birds={gallery_folder}", "--keys-file", tmp_path / "keys", "--port", 0)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert f"{READ_KEYS}_FISH" in outcome.stderr


@pytest.mark.parametrize(
    ("mode", "is_taken"), [(0o600, True), (0o400, True), (0o640, True), (0o644, False), (0o602, False), (0o601, False)]
)
def test_a_file_of_keys_that_everybody_can_read_is_refused(tmp_path: Path, mode: int, is_taken: bool) -> None:
    write_keys(tmp_path, f"{READ_KEYS}={READER}\n", mode)
    if is_taken:
        assert read_keys_file(tmp_path / "keys") == {READ_KEYS: READER}
        return
    with raises(UsageError, "invalid-keys", f"chmod 600 {tmp_path / 'keys'}") as refused:
        read_keys_file(tmp_path / "keys")
    assert READER not in str(refused.value)
