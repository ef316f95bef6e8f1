"""What the rules refuse and JAX and ptxas take, each tried on a GPU in a process of its own: none is right.

`python -m tests.gpu.refused --out FILE` writes what became of each, one JSON object a line. Not among them
is the Hopper matmul with delay_release=2: a stage handed back while it may still be read, a race that the
H200 did not lose when it was tried.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tuner.farm import Farm
from tuner.search_spaces.family import families
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.space import LegalSpace

from .checking import compile_and_measure
from .legal import Tried, measured, say, task_of

_SMALL = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2, "epi_tile_n": 64}
_LONG = MatmulProblem(m=512, n=512, k=1024, dtype="bfloat16")
_COPY = CopyProblem(m=512, n=1200, dtype="float32")

# The rule that alone is broken, the family, a problem and the fields that differ from the defaults.
CASES: tuple[tuple[str, str, Problem, dict[str, Any]], ...] = (
    ("matmul.m_divisible", "matmul_hopper", MatmulProblem(m=544, n=512, k=512, dtype="bfloat16"), _SMALL),
    ("matmul.n_divisible", "matmul_hopper", MatmulProblem(m=512, n=576, k=512, dtype="bfloat16"), _SMALL),
    (
        "matmul.k_divisible",
        "matmul_hopper",
        MatmulProblem(m=512, n=512, k=576, dtype="bfloat16"),
        {**_SMALL, "tile_k": 128},
    ),
    (
        "pipeline.steps",
        "matmul_hopper",
        _LONG,
        {**_SMALL, "max_concurrent_steps": 1, "delay_release": 1},
    ),
    ("raster.width", "matmul_hopper", _LONG, {**_SMALL, "grid_tile_width": 0}),
    ("copy.m_divisible", "copy_tma", _COPY, {"tile_m": 48, "tile_n": 48}),
    ("copy.n_divisible", "copy_tma", _COPY, {"tile_m": 64, "tile_n": 64}),
    ("copy.bytes", "copy_tma", CopyProblem(m=513, n=1200, dtype="float32"), {"tile_m": 3, "tile_n": 4}),
    (
        "pipeline.steps",
        "copy_tma",
        _COPY,
        {"tile_m": 16, "tile_n": 48, "max_concurrent_steps": 2, "delay_release": 2},
    ),
    ("grid.blocks_per_sm", "copy_tma", _COPY, {"tile_m": 64, "tile_n": 48, "blocks_per_sm": 0}),
)


def attempt(gpu: Any, farm: Farm, case: tuple[str, str, Problem, dict[str, Any]]) -> dict[str, Any]:
    """The record of one case, with the rules it breaks."""
    _, name, problem, fields = case
    family = families()[name]
    config = family.config(fields)
    space = LegalSpace(family, problem, gpu.target)
    columns = family.config_columns(problem, gpu.target, config)
    tried = Tried(
        family=family,
        problem=problem,
        kind="refused",
        config=config,
        smem_bytes=int(columns["smem_bytes"]),
    )
    future = farm.submit(compile_and_measure, task_of(tried, gpu.target))
    (record,) = measured(gpu, [(tried, future)], run_timeout_s=3.0)
    return {"rules": space.broken(config), **record}


def main() -> int:
    """Tries every case on the first GPU; exit 1 when one is right, or breaks another rule than it says."""
    from tuner.device import gpus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    gpu, good = gpus()[0], True
    with Farm(4) as farm, options.out.open("w") as file:
        for case in CASES:
            record = attempt(gpu, farm, case)
            file.write(json.dumps(record) + "\n")
            say(f"{case[1]} {case[0]}: {record['outcome']} {record['reason'][:120]}")
            good &= record["rules"] == (case[0],) and record["outcome"] != "right"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
