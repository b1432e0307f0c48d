"""Training methods by name.

A method has the heads and all other learnt state except the trunk; `plain`, one head with one loss, is the smallest.
"""

from __future__ import annotations

from training.construction import ClassTable

METHODS = ClassTable(
    __name__,
    {
        "cross-batch-memory": "memory:CrossBatchMemory",
        "distillation": "distillation:Distillation",
        "diva": "diva:DiVA",
        "group": "group:GroupMethod",
        "mic": "mic:MIC",
        "mixup": "mixup:Mixup",
        "plain": "base:Plain",
        "s2sd": "s2sd:S2SD",
        "sharing": "sharing:Sharing",
        "simix": "simix:SiMix",
    },
)
