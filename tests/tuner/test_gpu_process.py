"""The session inside a GPU process, on a CPU: its programs, timer and device are played."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import stubs
from tuner.device import Gpu
from tuner.gpu import GpuDriver
from tuner.gpu_process import Session

EXPECTED = jnp.arange(64, dtype=jnp.float32)


class Timer:
    """Reads what each call took from the program that was called."""

    METHOD = "played"

    def samples_ns(self, run: Any, runs: int) -> list[int]:
        found = []
        for _ in range(runs):
            run()
            found.append(round(Played.took_us[-1] * 1000))
        return found


class Played(Session):
    """Runs `program(out)` instead of a loaded executable; each run takes the next of `times_us`."""

    took_us: list[float] = []  # noqa: RUF012 - one session at a time

    def __init__(self, program: Any, times_us: Any = (1.0,)) -> None:
        super().__init__()
        self._operands = ()
        self._expected, self._tolerance = EXPECTED, jnp.zeros_like(EXPECTED)
        self._out = jnp.zeros_like(EXPECTED)
        self._timer = Timer()
        self._program, self._times_us = program, list(times_us)
        Played.took_us = []

    def _load(self, program: bytes, arguments: int) -> Any:
        if isinstance(self._program, Exception):
            raise self._program

        def run(out: Any) -> Any:
            n = len(self.took_us)
            self.took_us.append(self._times_us[min(n, len(self._times_us) - 1)])
            return self._program(out)

        return run

    def _clocks(self) -> dict[str, Any]:
        return {}


def in_place(function: Any) -> Any:
    return jax.jit(function, donate_argnums=0, keep_unused=True)


@in_place
def right(out: Any) -> Any:
    # Reads the buffer, so that XLA writes into it; multiplying by 0 keeps NaN, hence the where.
    return jnp.where(jnp.isnan(out), EXPECTED, EXPECTED)


@in_place
def leaves_one_stale(out: Any) -> Any:
    return jnp.where(jnp.arange(64) == 63, out, EXPECTED)


@in_place
def off_by_one(out: Any) -> Any:
    return jnp.where(jnp.arange(64) == 0, 1.0, jnp.where(jnp.isnan(out), EXPECTED, EXPECTED))


def raises(message: str) -> Any:
    def program(out: Any) -> Any:
        raise RuntimeError(message)

    return program


def measure(session: Session) -> tuple[dict[str, Any], int]:
    """The answer, and how often the start was told."""
    told = []
    answer, back = session.measure(b"", runs_us=10_000, hopeless_us=None, started=lambda: told.append(1))
    assert back == b""
    return answer, len(told)


def test_the_first_run_is_not_among_the_samples() -> None:
    """215.84 ms at first, then 1.61."""
    answer, told = measure(Played(right, [215_840, 1610, 1600, 1620, 1610]))
    assert (answer["rung"], answer["stage"], told) == ("timed", "", 1)
    assert len(answer["samples_ns"]) >= 4
    assert max(answer["samples_ns"]) == 1_620_000
    assert np.median(answer["samples_ns"]) == 1_610_000


@pytest.mark.parametrize("program", [leaves_one_stale, off_by_one], ids=["stale", "wrong"])
def test_a_wrong_element_is_found(program: Any) -> None:
    answer, _ = measure(Played(program))
    assert (answer["rung"], answer["stage"]) == ("ran", "verify")
    assert answer["reason"].startswith("WRONG_OUTPUT 1 of 64 elements")
    assert "samples_ns" not in answer


def test_stale_output_of_a_right_program_does_not_pass_for_its_own() -> None:
    session = Played(right)
    assert measure(session)[0]["rung"] == "timed"
    session._program = leaves_one_stale
    assert measure(session)[0]["reason"].startswith("WRONG_OUTPUT 1 of 64")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 GiB", "OOM RuntimeError"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: sticky", "CRASHED RuntimeError CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("", "CRASHED RuntimeError no message"),
    ],
)
def test_a_failing_run_breaks_the_process(message: str, reason: str) -> None:
    answer, _ = measure(Played(raises(message)))
    assert (answer["rung"], answer["stage"]) == ("compiled", "run")
    assert answer["reason"].startswith(reason)
    assert answer["fault"]


@pytest.mark.parametrize("wanted", [None, "true", ".5"])
def test_the_environment_of_a_gpu_process(monkeypatch: pytest.MonkeyPatch, wanted: str | None) -> None:
    """One card, and no preallocation unless the user wants it."""
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    if wanted:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", wanted)
    driver = object.__new__(GpuDriver)
    driver.gpu = Gpu(3, "GPU-uuid", stubs.H200)
    environment = driver._environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-uuid"
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == (wanted or "false")


def test_a_program_that_does_not_load() -> None:
    answer, told = measure(Played(RuntimeError("CUDA_ERROR_INVALID_IMAGE")))
    assert (answer["rung"], answer["stage"], told) == ("compiled", "load", 0)
    assert "CUDA_ERROR_INVALID_IMAGE" in answer["reason"]


@pytest.mark.parametrize(
    "message",
    ["RESOURCE_EXHAUSTED: Failed to load in-memory CUBIN", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"],
)
def test_out_of_memory_while_loading_says_nothing_about_the_configuration(message: str) -> None:
    """The record starts with OOM, so that the next sweep tries it again."""
    answer, _ = measure(Played(RuntimeError(message)))
    assert answer["reason"].startswith("OOM")
