"""Training methods by name.

A method has the heads and all other learnt state except the trunk; `plain`, one head with one loss, is the smallest.
"""

from __future__ import annotations

from training.methods.base import Method, Plain
from training.methods.distillation import Distillation
from training.methods.diva import DiVA
from training.methods.group import GroupMethod
from training.methods.memory import CrossBatchMemory
from training.methods.mic import MIC
from training.methods.mixup import Mixup
from training.methods.s2sd import S2SD
from training.methods.sharing import Sharing

METHODS: dict[str, type[Method]] = {
    "cross-batch-memory": CrossBatchMemory,
    "distillation": Distillation,
    "diva": DiVA,
    "group": GroupMethod,
    "mic": MIC,
    "mixup": Mixup,
    "plain": Plain,
    "s2sd": S2SD,
    "sharing": Sharing,
}
