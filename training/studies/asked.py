"""What a user asked for on the command line, as the plan of a study."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path

from training.studies.arms import SELECTIONS
from training.studies.plan import Plan, read_plan
from training.studies.study import Study


def plan_of(study: Study, args: Namespace) -> Plan:
    """The plan by the arguments of `zoo benchmark run`; what they leave open is as the study has it."""
    own = study.selections if args.select is None else (args.select,)
    selections = SELECTIONS if args.select == "both" else own
    seeds = study.seeds if args.seeds is None else args.seeds
    return Plan(study, args.dataset, seeds, selections, tuple(args.settings), args.data, tuple(args.only))


def wanted(folder: Path, only: list[str]) -> Plan:
    """The plan in a folder, of the arms that are asked for now, which it may lack; all of its own where none are."""
    plan = read_plan(folder)
    return dataclasses.replace(plan, only=tuple(only)) if only else plan
