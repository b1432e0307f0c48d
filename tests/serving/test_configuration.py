from __future__ import annotations

import re
from dataclasses import fields

import pytest

from serving.configuration import HOSTS, PREFIX, READ_KEYS, WRITE_KEYS, Configuration
from serving.galleries import COLLECTIONS, GALLERY, MODEL
from serving.keys import Keys
from tests.commandline import command_named
from tests.raising import raises
from tests.serving.running import ROOT
from zoo.errors import UsageError


def test_values_come_from_the_environment():
    found = Configuration.of({"ZOO_SERVE_RATE": "2.5", "ZOO_SERVE_MAX_K": "50", "PATH": "/bin"})
    assert (found.rate, found.max_k, found.concurrency) == (2.5, 50, Configuration().concurrency)
    assert Configuration.of({}) == Configuration()


@pytest.mark.parametrize("text", ["", "ten", "-1", "nan", "inf", "1.5", "0"])
def test_a_value_that_is_none_is_refused_by_name(text):
    with raises(UsageError) as caught:
        Configuration.of({"ZOO_SERVE_MAX_K": text})
    assert "ZOO_SERVE_MAX_K" in str(caught.value)


def test_a_misspelt_variable_is_not_passed_over():
    for variable, suggestion in (
        ("ZOO_SERVE_MAX_PIXEL", "ZOO_SERVE_MAX_PIXELS"),
        ("ZOO_SERVE_PRECISION", "ZOO_PRECISION"),
    ):
        with raises(UsageError) as caught:
            Configuration.of({variable: "5"})
        assert f"'{suggestion}'" in str(caught.value)


def test_variables_of_keys_and_hosts_are_known():
    environment = {READ_KEYS: "r" * 20, WRITE_KEYS: "w" * 20, "ZOO_SERVE_HOSTS": "a, b"}
    assert Configuration.of(environment) == Configuration()
    assert Keys.of(environment).may_write("w" * 20)


@pytest.mark.parametrize("text", ["0", "257", "two"])
def test_workers_are_bounded(text):
    with raises(UsageError) as caught:
        Configuration.of({"ZOO_SERVE_WORKERS": text})
    assert all(part in str(caught.value) for part in ("ZOO_SERVE_WORKERS", "1", "256"))


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
def test_the_workers_together_keep_to_the_limits(workers, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    whole = Configuration(workers=workers, concurrency=32, rate=12.0, burst=20)
    share = whole.share()
    assert workers * share.rate == pytest.approx(whole.rate)
    for part, all_of_it in ((share.concurrency, 32), (share.burst, 20), (share.cores, 8)):
        assert part >= 1
        assert workers * part <= max(all_of_it, workers)
        assert workers * (part + 1) > all_of_it
    assert Configuration(workers=4).share().rate == 0, "off stays off"


def test_every_setting_says_what_it_is():
    for one in fields(Configuration):
        assert one.metadata["help"]
        assert one.default >= one.metadata["low"], PREFIX + one.name.upper()


def test_the_page_of_the_docs_has_the_table():
    text = (ROOT / "docs" / "serve.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `--")]
    told = [
        f"| `--{one.name.replace('_', '-')}` | `{PREFIX}{one.name.upper()}` | {one.default} | {one.metadata['help']} |"
        for one in fields(Configuration)
    ]
    assert rows[: len(told)] == told
    sources = "".join(file.read_text() for file in (ROOT / "serving").rglob("*.py"))
    variables = set(re.findall(r'"(ZOO_[A-Z_]+[A-Z])"', sources))
    assert {HOSTS, READ_KEYS, WRITE_KEYS, GALLERY, COLLECTIONS, MODEL, "ZOO_SERVE_KEY"} <= variables
    flags = {flag for option in command_named("serve").params for flag in option.opts if flag.startswith("--")}
    assert [name for name in (*variables, *(flags - {"--help"})) if f"`{name}" not in text] == []
