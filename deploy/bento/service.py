"""BentoML service for the gallery and the model in this folder, unless the environment names others."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
if "ZOO_GALLERY" not in os.environ:
    os.environ["ZOO_GALLERY"] = str(HERE / "gallery")
    os.environ.setdefault("ZOO_MODEL", str(HERE / "model"))

from serving.service import ImageSearch  # noqa: E402  # reads the environment

__all__ = ["ImageSearch"]
