"""A family's REVISION, held together with the code that it generates.

revisions.json has, per family and jax version, the sha256 of what a few pinned configurations lower to,
printed without debug locations: comments, a reformat or another path leave it alone.
`python -m tests.kernels.revisions --write` brings it up to date, once REVISION is raised.
"""

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tuner.search_spaces import copy, copy_cp_async, matmul_blackwell, matmul_hopper, matmul_mma
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem

FILE = Path(__file__).with_name("revisions.json")

PINNED: dict[str, tuple[tuple[Problem, Any], ...]] = {
    "matmul_hopper": (
        (
            MatmulProblem(m=4096, n=8192, k=4096, dtype="bfloat16"),
            matmul_hopper.TuningConfig(
                tile_m=64,
                tile_n=256,
                max_concurrent_steps=3,
                wg_dimension="M",
                grid_minor_dim="M",
                grid_tile_width=16,
            ),
        ),
        (
            MatmulProblem(m=512, n=1536, k=512, dtype="float16", rhs="nk"),
            matmul_hopper.TuningConfig(
                tile_m=128,
                tile_n=96,
                tile_k=128,
                max_concurrent_steps=2,
                delay_release=1,
                epi_tile_m=64,
                epi_tile_n=32,
                cluster_dimension="M",
                barriers="per_operand",
                grid_tile_width=3,
            ),
        ),
        (
            MatmulProblem(m=256, n=256, k=128, dtype="bfloat16", out_dtype="float32"),
            matmul_hopper.TuningConfig(
                tile_m=64, tile_n=64, tile_k=32, wg_dimension="M", cluster_dimension="N"
            ),
        ),
    ),
    "matmul_mma": (
        (
            MatmulProblem(m=4096, n=4096, k=4096, dtype="bfloat16"),
            matmul_mma.TuningConfig(
                tile_n=128,
                max_concurrent_steps=4,
                wg_dimension="M",
                grid_minor_dim="M",
                grid_tile_width=8,
            ),
        ),
        (
            MatmulProblem(m=512, n=512, k=512, dtype="bfloat16", rhs="nk", out_dtype="float32"),
            matmul_mma.TuningConfig(epilogue="smem", delay_release=0),
        ),
    ),
    "matmul_blackwell": (
        (
            MatmulProblem(m=4096, n=8192, k=4096, dtype="bfloat16"),
            matmul_blackwell.TuningConfig(collective=1, grid_minor_dim="M", grid_tile_width=8),
        ),
        (
            MatmulProblem(m=1536, n=3072, k=1536, dtype="float16", rhs="nk", out_dtype="float32"),
            matmul_blackwell.TuningConfig(
                tile_m=64, tile_n=96, max_concurrent_steps=3, epi_tile_n=48, barriers="per_operand"
            ),
        ),
        (
            MatmulProblem(m=512, n=512, k=1024, dtype="bfloat16"),
            matmul_blackwell.TuningConfig(tile_m=64, epi_tile_n=256, collective=1),
        ),
    ),
    "copy_cp_async": (
        (CopyProblem(m=32768, n=16384, dtype="float32"), copy_cp_async.TuningConfig()),
        (
            CopyProblem(m=32768, n=512, dtype="int8"),
            copy_cp_async.TuningConfig(
                tile_m=8,
                tile_n=512,
                layout="rows",
                max_concurrent_steps=3,
                delay_release=1,
                blocks_per_sm=3,
            ),
        ),
        (
            CopyProblem(m=512, n=1024, dtype="int4"),
            copy_cp_async.TuningConfig(
                tile_m=64,
                tile_n=256,
                swizzle_bytes=32,
                max_concurrent_steps=2,
                grid_schedule="hardware",
                blocks_per_sm=1,
                grid_minor_dim="M",
            ),
        ),
    ),
    "copy_tma": (
        (CopyProblem(m=32768, n=16384, dtype="float32"), copy.TuningConfig()),
        (
            CopyProblem(m=4096, n=512, dtype="int8"),
            copy.TuningConfig(
                tile_m=8, tile_n=512, max_concurrent_steps=2, grid_schedule="hardware", delay_release=0
            ),
        ),
        (
            CopyProblem(m=4096, n=2048, dtype="bfloat16"),
            copy.TuningConfig(
                tile_m=32,
                tile_n=128,
                max_concurrent_steps=3,
                delay_release=2,
                blocks_per_sm=2,
                grid_minor_dim="M",
            ),
        ),
    ),
}


# Where a family's pinned configurations are for.
ARCHITECTURES = {"copy_cp_async": "sm_80", "matmul_blackwell": "sm_100", "matmul_mma": "sm_80"}


def target(family: str) -> Target:
    """The device a family's pinned configurations are lowered for."""
    return reference_target(ARCHITECTURES.get(family, "sm_90"))


def hashes(family: KernelFamily) -> dict[str, str]:
    """`{problem and configuration: hash}` under the running jax."""
    from tests.kernels.lowering import lowered
    from tuner.proof.verdict import module_text

    found = {}
    for problem, config in PINNED[family.name]:
        # Fields at their default go unnamed, so that a new field leaves the names as they are.
        defaults = dataclasses.asdict(family.config_class())
        told = " ".join(f"{k}={v}" for k, v in dataclasses.asdict(config).items() if v != defaults[k])
        text = module_text(lowered(family, problem, config, target(family.name)))
        found[f"{problem}; {told or 'defaults'}"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def recorded() -> dict[str, Any]:
    """`{family: {revision, jax: {version: hashes}}}` as committed."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def write() -> None:
    """Records the running jax; of another revision, nothing else is kept."""
    import jax

    known = recorded()
    for name in PINNED:
        family = families()[name]
        entry = known.get(name, {})
        kept = entry.get("jax", {}) if entry.get("revision") == family.revision else {}
        new = hashes(family)
        for pinned, value in kept.get(jax.__version__, {}).items():
            if new.get(pinned, value) != value:
                sys.exit(f"{name} generates other code for {pinned}: raise its REVISION first")
        versions = dict(sorted({**kept, jax.__version__: new}.items()))
        known[name] = {"revision": family.revision, "jax": versions}
    FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    os.environ["JAX_PLATFORMS"] = "cpu"
    write()
