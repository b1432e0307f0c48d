"""The global pooling that the project's own backbones share."""

from __future__ import annotations

from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d


def global_pooling(kind: str) -> SelectAdaptivePool2d:
    """Feature maps [n, c, h, w] to [n, c] by avg, max or avgmax (half of their sum), or "" for the maps themselves."""
    # timm's plain reduction: the adaptive form exports to more operators and is slower.
    pool = f"fast{kind}" if kind in ("avg", "max", "avgmax") else kind
    return SelectAdaptivePool2d(pool_type=pool, flatten=bool(kind))
