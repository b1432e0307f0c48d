"""At which K papers report recall, by data set."""

from __future__ import annotations

RECALL_AT = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}
"""As the authors of the splits do (Oh Song et al. 2016; Liu et al. 2016). All others: 1, 2, 4, 8."""
