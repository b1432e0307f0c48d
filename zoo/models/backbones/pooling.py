"""Global pooling of the project's backbones."""

from __future__ import annotations

from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d


def global_pooling(kind: str) -> SelectAdaptivePool2d:
    """Return a pooling of maps [n, c, h, w] to [n, c]: avg, max or avgmax (half their sum), or "" for no pooling."""
    # timm's plain reduction: the adaptive form exports to more operators and is slower.
    pool = f"fast{kind}" if kind in ("avg", "max", "avgmax") else kind
    return SelectAdaptivePool2d(pool_type=pool, flatten=bool(kind))
