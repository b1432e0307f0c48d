"""Training beside other recipes: losses and plain loops of other libraries as arms of a study on photographs.

    python -m tests.benchmarks.quality run peers/recipes --dataset cub2010 --data DIR --out FOLDER
    python -m tests.benchmarks.quality run peers/recipes --dataset cub2010 --data DIR --out FOLDER --only margin
    python -m tests.benchmarks.quality resume FOLDER               continue; --report writes the report alone

The options are those of `zoo benchmark run` and `resume`. The arms are in `study.py`, the settings of the libraries
with their sources in `peers.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.benchmarks.quality import peers
from tests.benchmarks.quality.study import STUDY
from training.methods import METHODS
from training.studies.papers import STUDIES
from training.studies.trials import METHOD_CONSTANTS
from zoo.cli import main as cli


def main(words: Sequence[str]) -> int:
    """Run a command of `zoo benchmark` that knows the peers and their study."""
    METHODS[peers.METHOD] = peers.PeerMethod
    METHOD_CONSTANTS[peers.METHOD] = "constant"
    STUDIES[STUDY.name] = STUDY
    return cli.main(["benchmark", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
