"""Tables and figures of the papers that no study stands for, and why: what cannot be established is not invented."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "what it prints is not at hand, only that it is there"


@dataclass(frozen=True)
class Missing:
    """paper: its short name; what: tables, figures, appendices; why there is no study; instead: what comes nearest."""

    paper: str
    what: str
    why: str
    instead: str = ""


MISSING = (
    Missing("Revisiting", "figures 6 and 11", "the toy on a plane is no grid of recipes", "zoo toy"),
    Missing("Revisiting", "table 3", UNKNOWN, "revisiting/table-2"),
    Missing(
        "Revisiting",
        "figure 9",
        UNKNOWN,
        "revisiting/figure-8 (spectra) and revisiting/figure-5 (by class, appendix C)",
    ),
    Missing(
        "Sharing",
        "table 9",
        "what it prints beside the losses, backbones and MIC of the recipes is not at hand",
        "sharing/tables-1-to-3",
    ),
    Missing("Sharing", "figures 3, 4 and 6", UNKNOWN, "sharing/generalisation-gap"),
    Missing("Group", "figures 7 and 8", UNKNOWN, "group/convergence and the other sweeps"),
    Missing("Group", "appendices C, D and E", UNKNOWN, "group/appendix-f-g-i"),
    Missing("DiVA", "table 4", UNKNOWN, "diva/table-2 and diva/backbones"),
    Missing(
        "DiVA",
        "figures 1, 4 and 5",
        "what each of them draws is not at hand",
        "diva/heads (each head alone, spectra) and diva/factors (what each head knows)",
    ),
    Missing(
        "Reality",
        "tables 1 and 2",
        UNKNOWN,
        "reality/pretrained; nmi_random of zoo evaluate for what NMI is worth",
    ),
    Missing("Reality", "figures 1 to 5", UNKNOWN, "zoo benchmark search (every trial is in its folder)"),
    Missing(
        "Reality",
        "tables 3 to 5 as a whole",
        "separated and concatenated scores come from a search, not from a grid",
        "zoo benchmark search; reality/tables-3-to-5 has its losses with the values that were published",
    ),
)
