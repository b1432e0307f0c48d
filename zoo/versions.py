"""The versions of the libraries that computed something."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_RUNTIMES = {"torch": ("torch", "timm"), "onnx": ("onnxruntime", "onnxruntime-gpu")}


def versions(runtime: str | None = None) -> dict[str, str]:
    """This package's and NumPy's, and those of what a model runs on, torch or onnx: distribution -> version."""
    names = ("dml-zoo", "numpy", *_RUNTIMES.get(runtime or "", ()))
    return {name: found for name in names if (found := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
