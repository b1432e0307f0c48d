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

AUXILIARY = ClassTable(
    __name__,
    {
        "shared": "auxiliary:SharedFeatures",
        "intra": "auxiliary:IntraClassFeatures",
        "dance": "auxiliary:MomentumContrast",
        "nce": "auxiliary:PlainContrast",
        "deepcluster": "auxiliary:DeepCluster",
        "rotation": "auxiliary:RotationPrediction",
        "instance": "auxiliary:InstanceDiscrimination",
    },
)
"""Auxiliary tasks of DiVA, by the names of their heads."""

TRANSFERS = ClassTable(
    __name__,
    {
        "embedding": "transfers:EmbeddingRegression",
        "rkd": "transfers:RelationalDistillation",
        "similarity": "transfers:SimilarityDistillation",
    },
)
"""Losses by which a student learns from a teacher's embeddings."""
