"""Methods by name. A method owns the heads and whatever else is learnt beside the trunk; `plain` is the smallest."""

from __future__ import annotations

from training.methods.base import Method, Plain
from training.methods.diva import DiVA
from training.methods.group import GroupMethod
from training.methods.memory import CrossBatchMemory
from training.methods.mic import MIC
from training.methods.mixup import Mixup
from training.methods.s2sd import S2SD, Distillation
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
