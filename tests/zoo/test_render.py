"""Table model and the environment of templates."""

from __future__ import annotations

import html
from importlib.resources import files

import pytest

from zoo.console import table_text
from zoo.render import Table, environment, replace_parts

TEMPLATES = {
    "zoo.report": {"blocks.html.j2", "page.html.j2", "style.css"},
    "zoo.hub": {"README.md.j2"},
    "training.studies": {"search.md.j2", "study.md.j2"},
}


def test_markdown() -> None:
    table = Table(("name", "size"), [("a|b", 1), ("c", 23)], numbers=["size"])
    assert table.markdown().splitlines() == [
        "| name | size |",
        "| --- | ---: |",
        r"| a\|b | 1 |",
        "| c | 23 |",
    ]
    assert Table(("", ""), [], range(1, 2)).markdown().endswith("| --- | ---: |")
    assert Table(("name",), []).markdown() == "| name |\n| --- |"


def test_csv() -> None:
    table = Table(("name", "value"), [("a,b", 0.1), ("c", None)])
    assert table.csv() == 'name,value\n"a,b",0.1\nc,\n'
    assert Table((), []).csv() == "\n"


def test_terminal_text_aligns_numbers_to_the_right() -> None:
    lines = table_text(Table(("name", "size"), [("a", 1), ("b", "2345")], ["size"])).splitlines()
    assert [line.rstrip().endswith(end) for line, end in zip(lines[2:], ("   1", "2345"), strict=True)] == [True, True]


def test_parts_of_a_page_are_replaced_and_the_rest_stays() -> None:
    page = "before\n<!-- one -->\nold\n\nold\n<!-- end -->\nbetween\n<!-- two -->\nkept\n<!-- end -->\nafter\n"
    new = replace_parts(page, {"one": r"new \1 \g<0>", "three": "the page has no such part"})
    assert new == page.replace("old\n\nold", r"new \1 \g<0>")
    assert replace_parts(new, {"one": r"new \1 \g<0>"}) == new
    assert replace_parts(page, {}) == page


@pytest.mark.parametrize("package", TEMPLATES)
def test_templates_are_part_of_the_package(package: str) -> None:
    """The wheel holds every file of a package's folder."""
    assert {file.name for file in files(package).joinpath("templates").iterdir()} == TEMPLATES[package]
    for name in TEMPLATES[package]:
        assert environment(package).get_template(name).name == name


@pytest.mark.parametrize("package", TEMPLATES)
def test_templates_that_make_html_escape(package: str) -> None:
    value = "<b> & \"x\" 'y'"
    text = environment(package, markup=True).from_string("{{ value }}").render(value=value)
    assert html.unescape(text) == value
    assert not set("<>\"'") & set(text)
