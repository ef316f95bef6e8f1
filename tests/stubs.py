"""A family whose configurations misbehave on request, and processes that play along without a GPU.

Loaded by our own children as `tests.stubs`, so that everything between the command and the records
is the real thing: pipes, deadlines, kills, replacements.
"""

import dataclasses
import functools
import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.device import Gpu
from tuner.search_spaces.architecture import device_target
from tuner.search_spaces.family import Axis, KernelFamily, named_family
from tuner.search_spaces.problem import CopyProblem
from tuner.search_spaces.rule import Rule

PROBLEM = CopyProblem(m=64, n=64, dtype="float32")
H200 = device_target("NVIDIA H200")
GPU = Gpu(0, "GPU-stub", H200)
SIZE = 40
KERNEL = "tests.stubs:FAMILY"
ARGUMENTS = (KERNEL, "m=64", "n=64", "dtype=float32")

# index (or * for all) -> what that configuration does; every other one is timed at 100 + index microseconds.
MISBEHAVING = json.loads(os.environ.get("STUB_MISBEHAVING", "{}"))
SLEEP_S = float(os.environ.get("STUB_SLEEP_S", "0"))
# UUID of a GPU that never starts, and a file that means every GPU is gone.
BROKEN = os.environ.get("STUB_BROKEN")
LOST = Path(os.environ.get("STUB_LOST", "/nonexistent"))
OPEN_S = float(os.environ.get("STUB_OPEN_S", "0"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StubConfig:
    index: int = 0


FAMILY = KernelFamily(
    name="stub",
    revision=1,
    problem_class=CopyProblem,
    config_class=StubConfig,
    axes=lambda problem, target: (Axis("index", tuple(range(SIZE))),),
    rules=(
        Rule(
            id="stub.index",
            holds=lambda index: index < SIZE,
            have="index={index}",
            need=f"below {SIZE}",
            remedy="lower it",
            source="stub",
        ),
    ),
    derived={"smem_bytes": lambda index: 1000 + index},
    default_config=lambda problem, target: StubConfig(),
    supports=lambda problem, target: "",
    predict_us=lambda index: 100.0 + index,
    build="tests.stubs:no_build",
    operands="tests.stubs:no_build",
    reference="tests.stubs:no_build",
    baseline="tests.stubs:no_build",
)


# The same family with more configurations, in another order.
WIDER = dataclasses.replace(
    FAMILY,
    axes=lambda problem, target: (Axis("index", tuple(reversed(range(SIZE + 5)))),),
    rules=(),
)
SLOW_DEFAULT = dataclasses.replace(FAMILY, default_config=lambda problem, target: StubConfig(index=SIZE - 1))


def misbehaviour(index: int) -> str | None:
    found: str | None = MISBEHAVING.get(str(index), MISBEHAVING.get("*"))
    return found


def time_ns(index: int) -> int:
    return 99_900 if misbehaviour(index) == "hair_faster" else (100 + index) * 1000


def install(patch: Callable[[object, str, Any], None] = setattr) -> None:
    """Makes the sweeps and commands of this process meet the stub GPU, session and compiler."""
    from tuner.options import Options

    played = functools.partial(Options, workers=2, session=SESSION, compile_function=compile_stub)
    for module, name, value in (
        ("tuner.device", "gpus", lambda: [GPU]),
        ("tuner.sweep", "driver_version", lambda: "580"),
        ("tuner.sweep", "foreign_processes", lambda gpu: []),
        ("tuner.options", "Options", played),
        ("tuner.api", "Options", played),
    ):
        patch(importlib.import_module(module), name, value)


def compile_stub(task: Any) -> tuple[dict[str, Any], bytes]:
    """Plays the compiler."""
    named_family(task["family"])
    index = task["config"]["index"]
    match misbehaviour(index):
        case "compile_failure":
            return {"rung": "lowered", "stage": "compile", "reason": "JaxRuntimeError ptxas says no"}, b""
        case "compile_error":
            raise AssertionError
        case "compile_crash":
            os.abort()
        case "compile_hang":
            time.sleep(1e6)
    return {"rung": "compiled", "stage": "", "reason": "", "registers": 32, "spill_bytes": 0}, json.dumps(
        index
    ).encode()


SESSION = "tests.stubs:StubSession"


class StubSession:
    """Plays the GPU."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def baselines(self, payload: bytes, **request: Any) -> tuple[dict[str, Any], bytes]:
        return {"sizes": []}, b""

    def open(self, payload: bytes, **request: Any) -> tuple[dict[str, Any], bytes]:
        if LOST.exists() or os.environ["CUDA_VISIBLE_DEVICES"] == BROKEN:
            raise RuntimeError("CUDA_ERROR_NO_DEVICE")
        time.sleep(OPEN_S)
        return {
            "device": {"device_kind": H200.device_kind, "sm_count": H200.sm_count},
            "versions": {"jax": "0"},
            "method": "stub",
            "baseline": {"us": 110.0, "algorithm": "stub"},
        }, b""

    def measure(self, payload: bytes, *, started: Any, **request: Any) -> tuple[dict[str, Any], bytes]:
        index = json.loads(payload)
        started()
        time.sleep(SLEEP_S)
        samples = [time_ns(index)] * 5
        match misbehaviour(index):
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "lose_gpu":
                LOST.touch()
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(1e6)
            case "wrong":
                return {"rung": "ran", "stage": "verify", "reason": "WRONG_OUTPUT 1 of 4096 elements"}, b""
            case "impossible":
                samples = [0, -5, 0, 2**64, 0]
            case "out_of_memory":
                reason = "OOM JaxRuntimeError RESOURCE_EXHAUSTED"
                return {"rung": "compiled", "stage": "run", "reason": reason, "fault": True}, b""
            case "sticky":
                raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return {"rung": "timed", "stage": "", "reason": "", "samples_ns": samples, "max_error": 0.0}, b""

    def hold(self, payload: bytes, *, name: str, **request: Any) -> tuple[dict[str, Any], bytes]:
        self._held[name] = json.loads(payload)
        return {}, b""

    def rounds(
        self, payload: bytes, *, rounds: int, runs: int, seed: int, started: Any
    ) -> tuple[dict[str, Any], bytes]:
        started()
        if any(misbehaviour(index) in ("crash", "crash_in_final") for index in self._held.values()):
            os.kill(os.getpid(), signal.SIGSEGV)
        samples = {name: [[time_ns(index)] * runs] * rounds for name, index in self._held.items()}
        return {"samples_ns": {**samples, "baseline": [[110_000] * runs] * rounds}}, b""


def no_build(*arguments: Any) -> Any:
    """Nothing here is ever built."""
    raise NotImplementedError
