"""Tables and figures of the papers that no study stands for, or none as a whole, and why: what cannot be established is
not invented."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "what it prints is not at hand, only that it is there"


@dataclass(frozen=True)
class Missing:
    """paper: its short name; what: tables, figures, appendices; why there is no study of it, or none that is all of it;
    instead: what comes nearest.

    names: the same as studies would be called: figure-7. runs: the studies that are run by these names, as far as they
    go; none: the names are refused.
    """

    paper: str
    what: str
    why: str
    instead: str
    names: tuple[str, ...]
    runs: tuple[str, ...] = ()


SWEEPS = ("group/anchors", "group/samples", "group/classes")

MISSING = (
    Missing(
        "Revisiting",
        "figures 6 and 11",
        "the toy on a plane is no grid of recipes",
        "zoo toy",
        ("figure-6", "figure-11"),
    ),
    Missing(
        "Revisiting",
        "table 3",
        UNKNOWN,
        "revisiting/table-2 (every objective, with rho and without, by every metric of the paper)",
        ("table-3",),
        ("revisiting/table-2",),
    ),
    Missing(
        "Revisiting",
        "figure 9",
        "the picture itself is not at hand, only that it is of spectral decay by class (appendix C)",
        "revisiting/figure-5 (that measure over all objectives, beside R@1)",
        ("figure-9",),
        ("revisiting/figure-5",),
    ),
    Missing(
        "Sharing",
        "table 5",
        "its numbers are not at hand, only that the other tables hold the other ablations",
        "sharing/ablation (one task or both, on one head or two, decorrelated or not)",
        ("table-5",),
        ("sharing/ablation",),
    ),
    Missing(
        "Sharing",
        "table 9",
        "what it prints beside the losses, backbones and MIC of the recipes is not at hand",
        "sharing/tables-1-to-3 and, on small data sets, sharing/losses",
        ("table-9",),
        ("sharing/tables-1-to-3", "sharing/losses"),
    ),
    Missing(
        "Sharing",
        "figure 4",
        "the picture itself is not at hand, only that it is of the gap between training and test classes",
        "sharing/generalisation-gap (R@1 on both, of each head, a random head and the features)",
        ("figure-4",),
        ("sharing/generalisation-gap",),
    ),
    Missing(
        "Sharing",
        "figures 3 and 6",
        UNKNOWN,
        "zoo benchmark report (a model's map and what it finds)",
        ("figure-3", "figure-6"),
    ),
    Missing(
        "Group",
        "figures 3 and 5",
        "which of the sweeps each of them draws is not at hand",
        f"{', '.join(SWEEPS)} (R@1 against each)",
        ("figure-3", "figure-5"),
        SWEEPS,
    ),
    Missing(
        "Group",
        "figure 4",
        UNKNOWN,
        f"{', '.join(SWEEPS)} and group/convergence",
        ("figure-4",),
    ),
    Missing(
        "Group",
        "figures 7 and 8",
        UNKNOWN,
        "zoo benchmark report (a model's map and what it finds); group/convergence and the other sweeps",
        ("figure-7", "figure-8"),
    ),
    Missing(
        "Group", "appendices C, D and E", UNKNOWN, "group/appendix-f-g-i", ("appendix-c", "appendix-d", "appendix-e")
    ),
    Missing(
        "DiVA",
        "table 4",
        UNKNOWN,
        "diva/table-2 (every task and every arm that the paper compares them with)",
        ("table-4",),
        ("diva/table-2",),
    ),
    Missing(
        "DiVA",
        "figures 1, 4 and 5",
        "what each of them draws is not at hand",
        "diva/heads (each head alone, spectra); what each head knows: diva/factors",
        ("figure-1", "figure-4", "figure-5"),
        ("diva/heads",),
    ),
    Missing(
        "Reality",
        "tables 1 and 2",
        "its measurements are tables 3 to 5; what the two before them print is not at hand",
        "zoo benchmark metrics (what each metric sees); reality/pretrained; nmi_random of zoo evaluate for what NMI is "
        "worth",
        ("table-1", "table-2"),
    ),
    Missing(
        "Reality",
        "figure 1",
        "three embeddings of the plane are no grid of recipes, and its points are not at hand; slides that reproduce "
        "it say that R@1, NMI and F1 are nearly the same on all three",
        "zoo benchmark metrics (the same on points of our own, beside R-precision and MAP@R)",
        ("figure-1",),
    ),
    Missing(
        "Reality",
        "figures 3 and 4",
        "the pictures are not at hand; slides that reproduce them, and number them so, say that they are of MAP@R and "
        "P@1 of its methods on its three data sets; the version of ECCV has three figures, numbered otherwise",
        "reality/tables-3-to-5 and, on small data sets, reality/losses (report.html draws each method with its "
        "interval, by P@1 and by MAP@R)",
        ("figure-3", "figure-4"),
        ("reality/tables-3-to-5", "reality/losses"),
    ),
    Missing(
        "Reality",
        "figures 2 and 5",
        "what they draw is not at hand, nor the other papers' numbers",
        "reality/over-the-years (whether newer losses are better, which the abstract denies); zoo benchmark search "
        "(every trial is in its folder)",
        ("figure-2", "figure-5"),
    ),
    Missing(
        "Reality",
        "tables 3 to 5 as a whole",
        "separated and concatenated scores come from a search, not from a grid",
        "zoo benchmark search; reality/tables-3-to-5 has its losses with the values that were published",
        (),  # what can be had of them goes by their names
    ),
)


def missing_of(name: str) -> Missing | None:
    """What is missing by a study's name, as group/figure-7."""
    paper, _, what = name.partition("/")
    return next((each for each in MISSING if paper == each.paper.lower() and what in each.names), None)
