"""What a machine lacks skips the tests that need it, visibly.

With TUNER_REQUIRE_ALL=1 a missing prerequisite fails them instead; a missing GPU always skips.
"""

import functools
import os

import hypothesis
import pytest

from tuner.compiling import missing_compiler

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
