"""The backbones that timm lacks, registered with timm on demand, so that a name is all that a card or recipe needs."""

from __future__ import annotations


def register() -> None:
    """Make the project's own architectures known to `timm.create_model`. Imports torch and timm."""
    from zoo.architectures import bn_inception, conv4, ensemble, googlenet  # noqa: F401  (importing registers)
