"""`raises`: pytest.raises by type and stable code, never by wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from zoo.errors import ZooError

E = TypeVar("E", bound=ZooError)


@contextmanager
def raises(kind: type[E], code: str | None = None, *values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this type and exactly this code (default: the code of the type itself).

    Args:
        kind: The error's type.
        code: Its code.
        values: Names, numbers and paths that the message must hold. They are never sentences.
    """
    with pytest.raises(kind) as caught:
        yield caught
    expected = kind.code if code is None else code
    assert caught.value.code == expected, f"code {caught.value.code!r} instead of {expected!r}: {caught.value}"
    for value in values:
        assert str(value) in str(caught.value)
