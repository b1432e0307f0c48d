"""Batch samplers by name.

`training.build` constructs a sampler with those of `labels` int64 [n], `batch_size`, `samples_per_class`, `seed` and
`embedding_size` that it has parameters for, and with the recipe's `batch.args`. A sampler that chooses by embeddings
has an array `memory`, float32 [n, d]. The training loop writes into it the embeddings of all samples at first, and
those of a batch after each step; it is part of the checkpoint.
"""

from __future__ import annotations

from training.construction import ClassTable

SAMPLERS = ClassTable(
    __name__,
    {
        "spc": "spc:SPC",
        "spc-r": "spc_r:SPCR",
        "m-per-class": "spc:SPC",  # the same draw, as Musgrave et al. 2020, A Metric Learning Reality Check, name it
        "class-weighted": "class_weighted:ClassWeighted",
        "greedy-coreset": "greedy_coreset:GreedyCoreset",
        "ddm": "distribution_matching:DDM",
        "frd": "distribution_matching:FRD",
    },
    others=["m_per_class:MPerClassSampler"],
)
__getattr__ = SAMPLERS.class_named
__all__ = SAMPLERS.class_names  # derived
