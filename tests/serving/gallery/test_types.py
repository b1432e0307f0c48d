from __future__ import annotations

import subprocess
import sys


def test_the_types_load_neither_faiss_nor_sqlite() -> None:
    """The client shares them, and needs neither."""
    code = (
        "import sys; from serving.gallery import Hit, Item; import serving.gallery.types; "
        "sys.exit(not {'faiss', 'sqlite3', 'torch'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
