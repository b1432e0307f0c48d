"""Batch samplers by name. Each is made as `sampler(labels, size, per_class, seed)` and gives `epoch(number, batches)`."""

from __future__ import annotations

from training.samplers.spc import SPC

SAMPLERS: dict[str, type[SPC]] = {
    "spc": SPC,
}
