"""Methods by name. A method owns the heads and whatever else is learnt beside the trunk; `plain` is the smallest."""

from __future__ import annotations

from training.methods.method import Method
from training.methods.mic import MIC
from training.methods.plain import Plain
from training.methods.sharing import Sharing

METHODS: dict[str, type[Method]] = {
    "mic": MIC,
    "plain": Plain,
    "sharing": Sharing,
}
