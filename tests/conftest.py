"""What a machine lacks skips the tests that need it, visibly.

With TUNER_REQUIRE_ALL=1 a missing prerequisite fails them instead; a missing GPU always skips.
"""

import functools
import importlib.util
import os
import shutil
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("few", deadline=None, max_examples=50)
hypothesis.settings.load_profile("few")


@functools.cache
def missing_gpu() -> str:
    """Why NVML finds no GPU, or ""."""
    from tuner.device import gpus
    from tuner.search_spaces.errors import NoGpuError

    try:
        return "" if gpus() else "NVML finds no GPU"
    except NoGpuError as error:
        return error.message


@functools.cache
def missing_compiler() -> str:
    """What compiling without a GPU lacks here, or ""."""
    missing = []
    try:
        plugin = importlib.util.find_spec("jax_plugins.xla_cuda13")
    except ModuleNotFoundError:
        plugin = None
    if plugin is None:
        missing.append("the CUDA PJRT plugin (jax-cuda13-plugin, jax-cuda13-pjrt)")
    if not _has_ptxas():
        missing.append("ptxas (nvidia-cuda-nvcc, or the CUDA toolkit)")
    return " and ".join(missing)


def _has_ptxas() -> bool:
    nvidia = importlib.util.find_spec("nvidia")
    roots = (nvidia.submodule_search_locations or ()) if nvidia else ()
    return shutil.which("ptxas") is not None or any(
        next(Path(root).glob("*/bin/ptxas"), None) for root in roots
    )


# JAX in this process runs on the CPU where there is nothing else, and does not go looking for more.
if missing_gpu():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (missing := missing_gpu()):
        pytest.skip(f"no GPU: {missing}")
    if item.get_closest_marker("deviceless") and (missing := missing_compiler()):
        told = f"compiling needs {missing}"
        if os.environ.get("TUNER_REQUIRE_ALL") == "1":
            pytest.fail(told, pytrace=False)
        pytest.skip(told)
