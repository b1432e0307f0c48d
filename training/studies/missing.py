"""Tables and figures of the papers that no study stands for, and why: what cannot be established is not invented."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "what it prints is not at hand, only that it is there"


@dataclass(frozen=True)
class Missing:
    """paper: its short name; what: tables, figures, appendices; why there is no study; instead: what comes nearest.

    names: the same as studies would be called: figure-7.
    """

    paper: str
    what: str
    why: str
    instead: str
    names: tuple[str, ...]


MISSING = (
    Missing(
        "Revisiting",
        "figures 6 and 11",
        "the toy on a plane is no grid of recipes",
        "zoo toy",
        ("figure-6", "figure-11"),
    ),
    Missing("Revisiting", "table 3", UNKNOWN, "revisiting/table-2", ("table-3",)),
    Missing(
        "Revisiting",
        "figure 9",
        UNKNOWN,
        "revisiting/figure-8 (spectra) and revisiting/figure-5 (by class, appendix C)",
        ("figure-9",),
    ),
    Missing(
        "Sharing",
        "table 5",
        UNKNOWN,
        "sharing/ablation and sharing/generalisation-gap",
        ("table-5",),
    ),
    Missing(
        "Sharing",
        "table 9",
        "what it prints beside the losses, backbones and MIC of the recipes is not at hand",
        "sharing/tables-1-to-3",
        ("table-9",),
    ),
    Missing(
        "Sharing", "figures 3, 4 and 6", UNKNOWN, "sharing/generalisation-gap", ("figure-3", "figure-4", "figure-6")
    ),
    Missing("Group", "figures 7 and 8", UNKNOWN, "group/convergence and the other sweeps", ("figure-7", "figure-8")),
    Missing(
        "Group", "appendices C, D and E", UNKNOWN, "group/appendix-f-g-i", ("appendix-c", "appendix-d", "appendix-e")
    ),
    Missing("DiVA", "table 4", UNKNOWN, "diva/table-2 and diva/backbones", ("table-4",)),
    Missing(
        "DiVA",
        "figures 1, 4 and 5",
        "what each of them draws is not at hand",
        "diva/heads (each head alone, spectra) and diva/factors (what each head knows)",
        ("figure-1", "figure-4", "figure-5"),
    ),
    Missing(
        "Reality",
        "tables 1 and 2",
        UNKNOWN,
        "reality/pretrained; nmi_random of zoo evaluate for what NMI is worth",
        ("table-1", "table-2"),
    ),
    Missing(
        "Reality",
        "figures 1 to 5",
        UNKNOWN,
        "zoo benchmark search (every trial is in its folder)",
        tuple(f"figure-{number}" for number in range(1, 6)),
    ),
    Missing(
        "Reality",
        "tables 3 to 5 as a whole",
        "separated and concatenated scores come from a search, not from a grid",
        "zoo benchmark search; reality/tables-3-to-5 has its losses with the values that were published",
        (),  # what can be had of them goes by their names
    ),
)
