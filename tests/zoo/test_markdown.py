from __future__ import annotations

from zoo.markdown import table, with_parts


def test_a_table() -> None:
    assert table(("name", "size"), [("a|b", "1"), ("c", "23")], numbers=[1]) == [
        "| name | size |",
        "| --- | ---: |",
        r"| a\|b | 1 |",
        "| c | 23 |",
    ]
    assert table(("", ""), [], range(1, 2))[1] == "| --- | ---: |"
    assert table(("name",), []) == ["| name |", "| --- |"]


def test_parts_of_a_page_are_exchanged_and_the_rest_stays() -> None:
    page = "before\n<!-- one -->\nold\n\nold\n<!-- end -->\nbetween\n<!-- two -->\nkept\n<!-- end -->\nafter\n"
    found = with_parts(page, {"one": r"new \1 \g<0>", "three": "there is no place for it"})
    assert found == page.replace("old\n\nold", r"new \1 \g<0>")
    assert with_parts(found, {"one": r"new \1 \g<0>"}) == found
