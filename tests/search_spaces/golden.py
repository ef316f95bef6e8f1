"""How many configurations each rule removes from a few spaces, so that a change of rules shows in review.

`python -m tests.search_spaces.golden --write` brings golden.json up to date.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.search_spaces.spaces import BIG
from tuner.search_spaces.architecture import reference_target
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.space import LegalSpace

FILE = Path(__file__).with_name("golden.json")
SPACES: tuple[tuple[Problem, str], ...] = (
    (BIG, "sm_90"),
    (MatmulProblem(m=4096, n=4096, k=4096, dtype="float16", rhs="nk"), "sm_90"),
    (MatmulProblem(m=1088, n=576, k=7168, dtype="bfloat16", out_dtype="float32"), "sm_90"),
    (MatmulProblem(m=64, n=4096, k=64, dtype="bfloat16"), "sm_90"),
    (CopyProblem(m=32768, n=16384, dtype="float32"), "sm_90"),
    (CopyProblem(m=1000, n=128, dtype="int8"), "sm_100"),
    (CopyProblem(m=1, n=4096, dtype="bfloat16"), "sm_120"),
)


def counts() -> dict[str, Any]:
    """`{problem on architecture: {family, size, raw, removed}}`, rules that remove nothing left out."""
    found = {}
    for problem, arch in SPACES:
        target = reference_target(arch)
        family = family_for(problem, target)
        space = LegalSpace(family, problem, target)
        removed = {rule: int(count) for rule, count in space.removed.items() if count}
        told = {"family": family.name, "size": len(space), "raw": space.raw, "removed": removed}
        found[f"{problem} on {arch}"] = told
    return found


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(json.dumps(counts(), indent=1) + "\n")
