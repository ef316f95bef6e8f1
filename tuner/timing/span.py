"""Method `span`: first start to last end of all device activity of one run, from a profiler trace.

Serves programs that are several kernels, or that copy: what `cupti` leaves out is inside.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

METHOD = "span"


def samples_ns(run: Callable[[], Any], runs: int) -> list[int]:
    """Device nanoseconds from the first start to the last end of each of `runs` calls."""
    return [_one_ns(run) for _ in range(runs)]


def _one_ns(run: Callable[[], Any]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        traces = list(Path(folder).rglob("*.xplane.pb"))
        data = ProfileData.from_file(str(traces[0]))
    starts, ends = [], []
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            # "Stream" lines hold what ran on the device; the others summarise it.
            if line.name.startswith("Stream"):
                for event in line.events:
                    starts.append(event.start_ns)
                    ends.append(event.start_ns + event.duration_ns)
    if not starts:
        raise RuntimeError("the trace shows no device activity; another tool may hold CUPTI")
    return int(max(ends) - min(starts))
