"""Method `cupti`: the duration of the one kernel a program launches, from CUPTI's activity records.

Gaps, memcpy and memset are free in it, so it serves programs that are one kernel and nothing else;
`NotOneKernel` says when that is not so.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.mosaic.gpu import profiler

METHOD = "cupti"


class NotOneKernel(Exception):
    """A run launched another number of kernels than one."""


def samples_ns(run: Callable[[], Any], runs: int) -> list[int]:
    """Device nanoseconds of each of `runs` calls, warm-up not included.

    Raises:
      NotOneKernel: a call launched no kernel or several; or another tool holds CUPTI.
    """
    found = kernels(run, runs)
    if len(found) != runs:
        names = ", ".join(sorted({name for name, _ in found})) or "none; another tool may hold CUPTI"
        raise NotOneKernel(f"{runs} runs launched {len(found)} kernels: {names}")
    return [ns for _, ns in found]


def release() -> None:
    """Hands CUPTI back, so that JAX's own profiler can have it: it serves one subscriber at a time."""
    session = profiler.mosaic_gpu_lib._mosaic_gpu_ext  # noqa: SLF001
    session._cupti_init()  # noqa: SLF001
    session._cupti_get_timings(True)  # noqa: SLF001


def kernels(run: Callable[[], Any], runs: int) -> list[tuple[str, int]]:
    """Name and nanoseconds of every kernel `runs` calls launched, in order."""
    # profiler.measure keeps no donated buffer alive between its calls, so its CUPTI session is used directly.
    session = profiler.mosaic_gpu_lib._mosaic_gpu_ext  # noqa: SLF001
    session._cupti_init()  # noqa: SLF001
    try:
        for _ in range(runs):
            last = run()
        jax.block_until_ready(last)
    finally:
        found = session._cupti_get_timings(False)  # noqa: SLF001
    return [(name, round(ms * 1e6)) for name, ms in found]
