"""`assert_refused_before_torch`: wrong arguments are reported before torch is loaded, in a process of its own."""

from __future__ import annotations

import json

from tests.children import run_python


def assert_refused_before_torch(call: list[str], mistakes: list[tuple[list[str], str]]) -> None:
    """Assert that each call of `zoo` with wrong options raises an error of its code, and loads no torch or timm."""
    code = f"""
import json, sys
from zoo.cli.main import run
from zoo.errors import ZooError
codes = []
for options, _ in {mistakes!r}:
    try:
        run([*{call!r}, *options])
    except ZooError as error:
        codes.append(error.code)
print(json.dumps([codes, sorted({{"torch", "timm"}} & set(sys.modules))]))
"""
    codes, loaded = json.loads(run_python(code))
    assert codes == [expected for _, expected in mistakes]
    assert loaded == []
