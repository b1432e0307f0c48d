from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import toys


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_pictures(tmp_path_factory.mktemp("pictures"))
