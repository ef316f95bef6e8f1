"""What workers and GPU processes do for `legal` and `refused`; they find it by this module's name."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tuner.compiling import compile_program, lowered_program
from tuner.gpu_process import Session
from tuner.proof.verdict import launch_smem_bytes, module_text


class Checking(Session):
    """Runs and checks programs; times nothing, and needs no baseline."""

    def baselines(self, payload: bytes, **opening: Any) -> tuple[dict[str, Any], bytes]:
        del payload, opening
        return {"sizes": []}, b""

    def open(
        self, payload: bytes, *, family: str, problem: dict[str, Any], seed: int, **rest: Any
    ) -> tuple[dict[str, Any], bytes]:
        del payload, rest
        self._bind(family, problem, seed)
        self._prepare_output(seed)
        # Twice in all: what a race spares once it may not spare again.
        self._timer = SimpleNamespace(samples_ns=lambda call, runs: [call() is None or 1])  # type: ignore[assignment]
        return {"device": self._device(), "versions": self._versions()}, b""


def compile_and_measure(task: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """As compile_program, with the shared memory that the compiled launch asks for."""
    info, program = compile_program(task)
    if program:
        info["launch_smem_bytes"] = launch_smem_bytes(module_text(lowered_program(task, compilable=False)))
    return info, program
