"""Tree of errors: codes, exit codes and the table in the module's docstring."""

from __future__ import annotations

import re

import pytest

import zoo
from tests.raising import raises
from zoo import errors
from zoo.errors import ServiceError, UsageError, ZooError, check_text, nearest


def subclasses(kind: type[ZooError]) -> list[type[ZooError]]:
    direct = [cls for cls in kind.__subclasses__() if cls.__module__ == "zoo.errors"]
    return [kind, *(inner for cls in direct for inner in subclasses(cls))]


def test_the_docstring_shows_the_whole_tree() -> None:
    names = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert sorted(names) == sorted(cls.__name__ for cls in subclasses(ZooError)[1:])


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in subclasses(ZooError)]
    assert len(set(codes)) == len(codes)
    assert (UsageError.code, errors.ModelNotFoundError.code) == ("usage", "model-not-found")
    with raises(UsageError, "unknown-name"):
        raise UsageError("runtime 'x'", code="unknown-name")
    assert UsageError("x").code == "usage"


@pytest.mark.parametrize(("status", "exit_code"), [(None, 1), (401, 2), (404, 2), (408, 1), (429, 1), (503, 1)])
def test_a_service_refuses_mistakes_with_2(status: int | None, exit_code: int) -> None:
    error = ServiceError("refused", status)
    assert (error.status, error.code, error.exit_code) == (status, "service", exit_code)
    assert ServiceError("refused", status, "key_needed").code == "key_needed"


def test_hints_name_the_nearest() -> None:
    assert nearest("glyhs", ["glyphs", "cub"]) == " Did you mean 'glyphs'?"
    assert nearest("xyz", ["glyphs", "cub"]) == ""
    with raises(UsageError, "invalid-value") as caught:
        check_text("device", 3)
    assert "device" in str(caught.value)


def test_every_public_name_is_there() -> None:
    assert [name for name in zoo.__all__ if getattr(zoo, name, None) is None] == []
    with pytest.raises(AttributeError):
        _ = zoo.datasets


@pytest.mark.parametrize(
    ("typed", "loss"),
    [
        *[(typed, "ms") for typed in ("multi-similarity", "MultiSimilarityLoss", "multi_similarity", "MS")],
        *[("ProxyAnchorLoss", "pa"), ("NTXentLoss", "ntxent"), ("nt-xent", "ntxent"), ("NPairsLoss", "npair")],
    ],
)
def test_a_loss_by_the_name_of_its_class_is_refused_with_its_own(typed: str, loss: str) -> None:
    with raises(ZooError, "unknown-name", f" {loss!r}?"):
        zoo.train("margin-conv4-glyphs", loss=typed)
