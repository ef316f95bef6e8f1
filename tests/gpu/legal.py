"""Legal configurations on a GPU: each one runs, ends and is right; what the rules refuse does not.

`python -m tests.gpu.legal --count 3000 --out FILE` writes one JSON object a configuration, compressed, and
ends with a table. Half of each problem's configurations are uniform, half extreme in one field or in shared
memory. `benchmarks/records/` has what an H200 did.
"""

import argparse
import dataclasses
import gzip
import json
import queue
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tuner.compiling import CompileTask
from tuner.farm import Farm
from tuner.gpu import GpuDriver, Job
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.space import LegalSpace

from .checking import compile_and_measure

# Family, problem and share of the configurations. By TMA the mma.sync kernel runs on Hopper too.
CASES: tuple[tuple[str, Problem, int], ...] = (
    ("matmul_hopper", MatmulProblem(m=512, n=1024, k=512, dtype="bfloat16"), 3),
    ("matmul_hopper", MatmulProblem(m=1536, n=768, k=4224, dtype="bfloat16", rhs="nk"), 3),
    ("matmul_hopper", MatmulProblem(m=4096, n=2048, k=1024, dtype="float16", out_dtype="float32"), 3),
    ("matmul_hopper", MatmulProblem(m=640, n=1152, k=320, dtype="float16", rhs="nk"), 2),
    ("matmul_hopper", MatmulProblem(m=64, n=4096, k=2048, dtype="bfloat16"), 2),
    ("matmul_hopper", MatmulProblem(m=1024, n=960, k=2048, dtype="int8", out_dtype="int32", rhs="nk"), 3),
    (
        "matmul_hopper",
        MatmulProblem(m=512, n=1280, k=1536, dtype="float8_e4m3fn", out_dtype="bfloat16", rhs="nk"),
        2,
    ),
    (
        "matmul_hopper",
        MatmulProblem(
            m=768,
            n=512,
            k=4096,
            dtype="float8_e5m2",
            rhs_dtype="float8_e4m3fn",
            out_dtype="float32",
            rhs="nk",
        ),
        2,
    ),
    (
        "matmul_hopper",
        MatmulProblem(m=256, n=640, k=768, dtype="float8_e5m2", out_dtype="float16", rhs="nk"),
        1,
    ),
    ("matmul_hopper", MatmulProblem(m=512, n=768, k=1024, dtype="float32", rhs="nk"), 3),
    ("copy_tma", CopyProblem(m=4096, n=4096, dtype="float32"), 2),
    ("copy_tma", CopyProblem(m=1000, n=3072, dtype="bfloat16"), 2),
    ("copy_tma", CopyProblem(m=96, n=65536, dtype="int8"), 2),
    ("copy_tma", CopyProblem(m=512, n=4096, dtype="int4"), 1),
    ("copy_tma", CopyProblem(m=768, n=1280, dtype="float8_e8m0fnu"), 1),
    ("copy_tma", CopyProblem(m=768, n=1280, dtype="float8_e3m4"), 1),
    ("copy_tma", CopyProblem(m=1, n=1 << 20, dtype="float16"), 1),
    ("copy_tma", CopyProblem(m=2048, n=96, dtype="uint32"), 1),
    ("matmul_mma", MatmulProblem(m=512, n=768, k=512, dtype="bfloat16"), 1),
    ("matmul_mma", MatmulProblem(m=256, n=512, k=1024, dtype="int8", out_dtype="int32", rhs="nk"), 1),
)
# Indices looked at for extremes.
_POOL = 200_000
_COMPILE_TIMEOUT_S = 200.0


def extremes(space: LegalSpace, count: int, rng: np.random.Generator) -> list[Any]:
    """Configurations at the ends: of each field, and of shared memory within one stage of its limit."""
    drawn = [space.draw(rng) for _ in range(500)]
    indices = np.unique(np.concatenate([rng.integers(len(space), size=min(_POOL, 4 * len(space))), drawn]))
    columns = space.columns(indices)
    fuller = {**columns, "max_concurrent_steps": columns["max_concurrent_steps"] + 1}
    smem = space.family.columns(space.problem, space.target, fuller)["smem_bytes"]
    groups = [np.flatnonzero(smem >= space.target.smem_optin_bytes)]
    for column in columns.values():
        ends = np.unique(column) if column.dtype.kind == "U" else (column.min(), column.max())
        groups += [np.flatnonzero(column == end) for end in ends]
    groups = [rng.permutation(group) for group in groups if len(group)]
    turns = (group[turn] for turn in range(count) for group in groups if turn < len(group))
    chosen = list(dict.fromkeys(int(indices[row]) for _, row in zip(range(4 * count), turns, strict=False)))
    return [space.config(index) for index in chosen[:count]]


def picked(space: LegalSpace, count: int, rng: np.random.Generator) -> list[tuple[str, Any]]:
    """Half uniform, half extreme; fewer where the space has fewer."""
    uniform = space.sample(min(count - count // 2, len(space)), seed=int(rng.integers(1 << 30)))
    found = dict.fromkeys(uniform, "uniform")
    for config in extremes(space, count, rng):
        if len(found) >= count:
            break
        found.setdefault(config, "extreme")
    return [(kind, config) for config, kind in found.items()]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One configuration and what became of it."""

    family: KernelFamily
    problem: Problem
    kind: str
    config: Any
    smem_bytes: int


def tasks(target: Target, count: int, seed: int) -> list[list[Tried]]:
    """The configurations to try, problem by problem."""
    rng = np.random.default_rng(seed)
    shares = sum(share for *_, share in CASES)
    found = []
    for name, problem, share in CASES:
        space = LegalSpace(families()[name], problem, target)
        chosen = picked(space, -(-count * share // shares), rng)
        found.append(
            [
                Tried(
                    family=space.family,
                    problem=problem,
                    kind=kind,
                    config=config,
                    smem_bytes=int(space.family.config_columns(problem, target, config)["smem_bytes"]),
                )
                for kind, config in chosen
            ]
        )
    return found


def run(gpu: Any, count: int, seed: int, out: Path) -> Counter[str]:
    """Compiles and runs every configuration; writes the records; counts what became of them."""
    farm = Farm(timeout_s=_COMPILE_TIMEOUT_S)
    cases = tasks(gpu.target, count, seed)
    submitted = [
        [(tried, farm.submit(compile_and_measure, task_of(tried, gpu.target))) for tried in case]
        for case in cases
    ]
    counts: Counter[str] = Counter()
    with gzip.open(out, "wt") as file:
        for case in submitted:
            for record in measured(gpu, case):
                file.write(json.dumps(record) + "\n")
                counts[record["outcome"]] += 1
            tried = case[0][0]
            say(f"{tried.family.name} {tried.problem}: {len(case)}, so far {dict(counts)}")
    farm.shutdown()
    return counts


def say(line: str) -> None:
    """A line on stdout, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def task_of(tried: Tried, target: Target) -> dict[str, Any]:
    """What a worker needs."""
    return CompileTask(
        family=tried.family.address,
        problem=tried.problem.to_dict(),
        config=dataclasses.asdict(tried.config),
        target=target.to_dict(),
    ).to_dict()


def measured(gpu: Any, case: list[tuple[Tried, Any]], *, run_timeout_s: float = 20.0) -> list[dict[str, Any]]:
    """The records of one problem's configurations, run in a GPU process of their own."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    first = case[0][0]
    opening = {"family": first.family.address, "problem": first.problem.to_dict(), "seed": 0}
    driver = GpuDriver(
        gpu, opening, answers, session="tests.gpu.checking:Checking", run_timeout_s=run_timeout_s
    )
    records, running = [], 0
    for tried, future in case:
        info, program = future.result()
        if program:
            driver.give(Job(tag=(tried, info), program=program))
            running += 1
        else:
            records.append(_record(tried, info, info))
    for _ in range(running):
        job, answer = answers.get(timeout=120)
        records.append(_record(*job.tag, answer))
    driver.stop()
    return records


def _record(tried: Tried, info: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    launched = info.get("launch_smem_bytes")
    right = answer["rung"] in ("verified", "timed")
    outcome = "right" if right else str(answer["reason"]).partition(" ")[0]
    if right and launched != tried.smem_bytes:
        outcome = "other_smem"
    return {
        "family": tried.family.name,
        "problem": tried.problem.to_dict(),
        "kind": tried.kind,
        "config": dataclasses.asdict(tried.config),
        "outcome": outcome,
        "reason": answer["reason"],
        "max_error": answer.get("max_error"),
        "smem_bytes": tried.smem_bytes,
        "launch_smem_bytes": launched,
        "registers": info.get("registers"),
        "spill_bytes": info.get("spill_bytes"),
    }


def main() -> int:
    """Runs it on the first GPU; exit 1 when a configuration is anything but right."""
    from tuner.device import gpus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    started = time.monotonic()
    counts = run(gpus()[0], options.count, options.seed, options.out)
    say(f"{sum(counts.values())} configurations in {time.monotonic() - started:.0f} s: {dict(counts)}")
    return 0 if set(counts) == {"right"} else 1


if __name__ == "__main__":
    sys.exit(main())
