"""How fast a legal space is enumerated, beside the ways others do it, and how far that goes.

All get the same axes and the same constraints, those of the Hopper matmul family for one problem, and must
find the same number of legal points. The slice of its real axes that they share is small enough for
`itertools` to finish; how far we go beyond it is told after. Run it with `python -m benchmarks.enumeration`.
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import platform
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tuner
from tuner.search_spaces import matmul_hopper
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.family import Axis
from tuner.search_spaces.problem import MatmulProblem, itemsize_bytes
from tuner.search_spaces.space import LegalSpace

ROOT = Path(__file__).resolve().parent.parent
PROBLEM = MatmulProblem(m=4096, n=8192, k=4096, dtype="bfloat16")
TARGET = reference_target("sm_90")
RUNS = 3
DRAWS = 1000

# Values kept of the real axes; those of other axes are all there.
SLICE: Mapping[str, Collection[int]] = {
    "tile_m": range(64, 257, 64),
    "epi_tile_m": range(64, 257, 64),
    "tile_n": range(32, 257, 32),
    "epi_tile_n": range(32, 257, 32),
    "tile_k": (32, 64, 96, 128),
    "max_concurrent_steps": range(1, 8),
    "grid_tile_width": (1, 4, 16, 64),
}
BILLION: Mapping[str, Collection[int]] = {
    "tile_m": range(64, 513, 64),
    "epi_tile_m": range(64, 513, 64),
    "tile_n": range(16, 257, 16),
    "epi_tile_n": range(16, 257, 16),
    "tile_k": (16, 32, 64, 96, 128, 256),
    "max_concurrent_steps": range(1, 17),
    "grid_tile_width": range(1, 15),
}
# How many times faster than each we are to be; and what a space of 10^9 points, and a draw, may cost.
FASTER = {"itertools": 10, "python-constraint2": 10, "pyATF": 4}
COUNT_S, COUNT_MB, DRAW_US = 0.1, 200, 1000

type Axes = Mapping[str, Sequence[Any]]


def space(kept: Mapping[str, Collection[int]], problem: MatmulProblem = PROBLEM) -> LegalSpace:
    """The legal space of the Hopper matmul family, some axes cut down to the values `kept`."""

    def axes(problem: MatmulProblem, target: Target) -> tuple[Axis, ...]:
        return tuple(
            dataclasses.replace(a, values=[v for v in a.values if v in kept[a.name]]) if a.name in kept else a
            for a in matmul_hopper.axes(problem, target)
        )

    return LegalSpace(dataclasses.replace(matmul_hopper.FAMILY, axes=axes), problem, TARGET)


def constraints(problem: MatmulProblem = PROBLEM) -> list[str]:
    """matmul_hopper.RULES for rhs=(k, n), as the plainest Python expressions over the axes."""
    m, n, k, size = problem.m, problem.n, problem.k, itemsize_bytes(problem.dtype)
    out_size = itemsize_bytes(problem.out_dtype)
    cta_m, cta_n = "tile_m * (1 + (wg_dimension == 'M'))", "tile_n * (1 + (wg_dimension == 'N'))"
    cluster_m, cluster_n = "(1 + (cluster_dimension == 'M'))", "(1 + (cluster_dimension == 'N'))"
    grid_m, grid_n = f"({m} // ({cta_m} * {cluster_m}))", f"({n} // ({cta_n} * {cluster_n}))"
    is_plane = f"{grid_m} > 1 and {grid_n} > 1"
    minor = f"({grid_m} if grid_minor_dim == 'M' else {grid_n})"
    blocks = f"{TARGET.sm_count} // (1 + (cluster_dimension is not None))"
    waves = f"-(-{grid_m} * {grid_n} // min({grid_m} * {grid_n}, {blocks}))"
    total_steps = f"{waves} * ({k} // tile_k)"
    # The quick way out is nearly always taken: the steps of one tile are enough.
    is_short = f"max_concurrent_steps <= {k} // tile_k"
    steps = f"(max_concurrent_steps if {is_short} else min(max_concurrent_steps, {total_steps}))"
    epi_slots = "min(2, (tile_m // epi_tile_m) * (tile_n // epi_tile_n))"
    smem = (
        f"-(-{steps} * {cta_m} * tile_k * {size} // 1024) * 1024",
        f"-(-{steps} * {cta_n} * tile_k * {size} // 1024) * 1024",
        f"-(-2 * {epi_slots} * epi_tile_m * epi_tile_n * {out_size} // 1024) * 1024",
        f"8 * {steps} * (2 + (barriers == 'per_operand'))",
    )
    return [
        "tile_m >= 64 and tile_m % 64 == 0",
        "8 <= tile_n <= 256 and tile_n % 8 == 0",
        f"{m} % ({cta_m} * {cluster_m}) == 0",
        f"{n} % ({cta_n} * {cluster_n}) == 0",
        f"{k} % tile_k == 0",
        f"tile_k * {size} % 32 == 0",
        f"tile_n * {size} % 32 == 0",
        f"{cta_m} // 8 <= 256",
        f"{cta_n} // 8 <= 256",
        "tile_k // 8 <= 256",
        f"{cta_m} * tile_k * {size} % (128 * {cluster_n}) == 0",
        f"{cta_n} * tile_k * {size} % (128 * {cluster_m}) == 0",
        # With a legal swizzle there are more rows than one tile has; nothing else is asked then.
        "cluster_dimension != 'M' or tile_k // 8 % 2 == 0",
        "cluster_dimension != 'M' or tile_k // 8 > 1",
        "tile_m % epi_tile_m == 0 and epi_tile_m % 64 == 0",
        "tile_n % epi_tile_n == 0",
        f"epi_tile_n * {out_size} % 32 == 0",
        "max_concurrent_steps >= 1 and max_concurrent_steps > delay_release",
        "0 <= delay_release <= 1",
        f"{steps} <= 32",
        f"{' + '.join(smem)} < {TARGET.smem_optin_bytes}",
        "grid_tile_width >= 1",
        f"grid_tile_width == 1 or {is_plane} and grid_tile_width <= {minor}",
        f"grid_minor_dim == 'N' or {is_plane}",
        f"{is_short} or max_concurrent_steps <= max({total_steps}, delay_release + 1)",
    ]


# The others. Each gets the axes and the constraints, and gives a function to time that returns the count.


def read(constraint: str, axes: Axes) -> list[str]:
    names = compile(constraint, "constraint", "eval").co_names
    return [name for name in axes if name in names]


def predicate(parameters: Sequence[str], together: Sequence[str]) -> Callable[..., bool]:
    """One function that stops at the first of several constraints that fails."""
    found: Callable[..., bool] = eval(
        f"lambda {', '.join(parameters)}: {' and '.join(f'({c})' for c in together)}"
    )
    return found


def by_itertools(axes: Axes, told: Sequence[str]) -> Callable[[], int]:
    # Written out in one loop: a function called for each point would cost more than its constraints.
    wanted = " and ".join(f"({c})" for c in told)
    loop = f"lambda points: sum(1 for {', '.join(axes)} in points if {wanted})"
    count = eval(loop)
    return lambda: int(count(itertools.product(*axes.values())))


def by_python_constraint(axes: Axes, told: Sequence[str]) -> Callable[[], int]:
    """As Kernel Tuner does, without looking ahead; but its parser of text stumbles over conditionals."""
    from constraint import OptimizedBacktrackingSolver, Problem

    predicates = [(predicate(read(c, axes), [c]), read(c, axes)) for c in told]

    def count() -> int:
        problem = Problem(OptimizedBacktrackingSolver(forwardcheck=False))
        for name, values in axes.items():
            problem.addVariable(name, list(values))
        for function, names in predicates:
            problem.addConstraint(function, names)
        return len(problem.getSolutionsOrderedList(list(axes)))

    return count


def by_pyatf(axes: Axes, told: Sequence[str]) -> Callable[[], int]:
    """Each constraint on the last of its parameters, in the order of the axes: others were slower."""
    from pyatf import TP, Set
    from pyatf.search_space import SearchSpace

    earliest: dict[str, list[str]] = {name: [] for name in axes}
    for constraint in told:
        earliest[read(constraint, axes)[-1]].append(constraint)

    def parameter(name: str, ready: list[str]) -> Any:
        parameters = [n for n in axes if any(n in read(c, axes) for c in ready)]
        return TP(name, Set(*axes[name]), predicate(parameters, ready) if ready else None)

    parameters = [parameter(*item) for item in earliest.items()]
    return lambda: int(SearchSpace(*parameters, verbosity=0).constrained_size)


OTHERS: Mapping[str, Callable[[Axes, Sequence[str]], Callable[[], int]]] = {
    "itertools": by_itertools,
    "python-constraint2": by_python_constraint,
    "pyATF": by_pyatf,
}


# Measuring


def best_s(function: Callable[[], Any]) -> float:
    def once() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return min(once() for _ in range(RUNS))


def cold_s() -> float:
    """The first enumeration of a fresh process, its imports done."""
    code = "import time, benchmarks.enumeration as e; s = time.perf_counter(); e.space(e.SLICE)"
    command = [sys.executable, "-c", f"{code}; print(time.perf_counter() - s)"]
    return float(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def compare() -> dict[str, dict[str, Any]]:
    """Ours and every other on the slice; one that is not installed has no seconds."""
    ours = space(SLICE)
    rows: dict[str, dict[str, Any]] = {
        "ours, warm": {"version": tuner.__version__, "s": best_s(lambda: space(SLICE))},
        "ours, cold": {"version": tuner.__version__, "s": cold_s()},
    }
    for name, other in OTHERS.items():
        try:
            count = other({name: axis.values for name, axis in ours.axes.items()}, constraints())
            version = platform.python_version() if name == "itertools" else importlib.metadata.version(name)
        except ImportError:
            rows[name] = {"version": "", "s": None}
            continue
        assert count() == len(ours), f"{name} finds {count()} legal points, not {len(ours)}"
        rows[name] = {"version": version, "s": best_s(count)}
    for row in rows.values():
        row["legal"] = len(ours)
        row["ratio"] = row["s"] and row["s"] / rows["ours, warm"]["s"]
    return rows


def scale(kept: Mapping[str, Collection[int]]) -> dict[str, Any]:
    """What it costs to count a space, to draw the i-th of it, and to tell which one a configuration is."""
    found = space(kept)
    count_s = best_s(lambda: space(kept))
    tracemalloc.start()
    space(kept)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    indices = random.Random(0).choices(range(len(found)), k=DRAWS)
    configs = [found.config(index) for index in indices]
    return {
        "raw": found.raw,
        "legal": len(found),
        "count_s": count_s,
        "peak_mb": peak_bytes / 1e6,
        "draw_us": best_s(lambda: [found.config(index) for index in indices]) / DRAWS * 1e6,
        "index_us": best_s(lambda: [found.index(config) for config in configs]) / DRAWS * 1e6,
    }


def missed(rows: Mapping[str, Any], billion: Mapping[str, Any], real: Mapping[str, Any]) -> list[str]:
    """The targets that were not met."""
    ratios = {name: rows[name]["ratio"] or least for name, least in FASTER.items()}
    told = {f"{name} is {ratios[name]:.1f}x, not {x}x": ratios[name] >= x for name, x in FASTER.items()}
    told[f"10^9 points take {billion['count_s']:.3f} s, not {COUNT_S}"] = billion["count_s"] < COUNT_S
    told[f"10^9 points take {billion['peak_mb']:.0f} MB, not {COUNT_MB}"] = billion["peak_mb"] < COUNT_MB
    told[f"a draw takes {real['draw_us']:.0f} us, not {DRAW_US}"] = real["draw_us"] < DRAW_US
    return [line for line, met in told.items() if not met]


def show(report: Mapping[str, Any]) -> None:
    print(f"{PROBLEM} on {TARGET.arch}; best of {RUNS}; a slice of {report['raw']} points\n")
    print(f"{'':<18} {'version':>8} {'seconds':>9} {'ratio':>8} {'legal':>8}")
    for name, row in report["slice"].items():
        if row["s"] is None:
            print(f"{name:<18} skipped, it is not installed: pip install {name}")
        else:
            print(f"{name:<18} {row['version']:>8} {row['s']:>9.4f} {row['ratio']:>7.1f}x {row['legal']:>8}")
    told = {"count_s": "count s", "peak_mb": "peak MB", "draw_us": "draw us", "index_us": "index us"}
    print(f"\n{'ours alone':<18} {'raw':>8} {'legal':>9} {' '.join(f'{t:>8}' for t in told.values())}")
    for name in ("billion", "real"):
        row = report[name]
        figures = " ".join(f"{row[key]:>8.4g}" for key in told)
        print(f"{name:<18} {row['raw']:>8.1e} {row['legal']:>9} {figures}")
    print("\n" + ("\n".join(f"MISSED: {line}" for line in report["missed"]) or "every target is met"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    rows, billion, real = compare(), scale(BILLION), scale({})
    report = {"raw": space(SLICE).raw, "slice": rows, "billion": billion, "real": real}
    report["missed"] = missed(rows, billion, real)
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    sys.exit(bool(report["missed"]))


if __name__ == "__main__":
    main()
