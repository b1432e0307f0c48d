"""Batch samplers by name, made as `sampler(labels, size, per_class, seed)`; they give `epoch(number, batches)`."""

from __future__ import annotations

from training.samplers.spc import SPC

SAMPLERS: dict[str, type[SPC]] = {
    "spc": SPC,
}
