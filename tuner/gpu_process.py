"""The process that owns a GPU: `python -m tuner.gpu_process`. Loads compiled programs and times them.

It is killed and replaced after a crash, a hang or a sticky CUDA error, so it keeps nothing that
can't be made again in seconds.
"""

import sys
from typing import Any

from .child import Parent
from .compiling import reason, resolve

CALLS = ("baselines", "open", "measure", "hold", "rounds")


def main() -> None:
    """Serves the calls of the session class named on the command line."""
    parent = Parent()
    session = resolve(sys.argv[2])()
    for header, payload in parent.requests():
        call = header.pop("call")
        if call not in CALLS:
            parent.reply({"error": f"unknown call {call!r}"})
            continue
        # Tells the parent when the kernel itself starts: only from then on does its deadline run.
        header["started"] = lambda: parent.reply({"started": True})
        try:
            answer, back = getattr(session, call)(payload, **header)
        except Exception as error:  # noqa: BLE001 - any failure is an answer
            answer, back = {"error": reason(error)}, b""
        parent.reply(answer, back)


class Session:
    """One problem on one GPU: its operands, reference, output buffer, baseline and loaded programs."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def baselines(
        self, payload: bytes, *, family: str, problem: dict[str, Any], seed: int, started: Any
    ) -> tuple[dict[str, Any], bytes]:
        """XLA's programs for the baseline as this process autotunes them, serialized."""
        del payload, started
        from jax.experimental import serialize_executable

        self._bind(family, problem, seed)
        parts = [serialize_executable.serialize(c)[0] for c in self._compile_baselines()]
        return {"sizes": [len(p) for p in parts]}, b"".join(parts)

    def open(
        self,
        payload: bytes,
        *,
        family: str,
        problem: dict[str, Any],
        seed: int,
        sizes: list[int],
        started: Any,
    ) -> tuple[dict[str, Any], bytes]:
        """Makes operands and reference, and times this and another process's baseline programs.

        Returns:
          device, versions, method, baseline {"us", "algorithm", "variants"}.
        """
        del started
        self._bind(family, problem, seed)
        programs = {f"here {i}": c for i, c in enumerate(self._compile_baselines())}
        at = 0
        for i, size in enumerate(sizes):
            programs[f"elsewhere {i}"] = self._load(payload[at : at + size], len(self._operands))
            at += size
        self._prepare_output(seed)
        variants = self._time_baselines(programs)
        fastest = min(variants, key=lambda name: variants[name]["us"])
        self._baseline = programs[fastest]
        return {
            "device": self._device(),
            "versions": self._versions(),
            "method": self._method,
            "baseline": {**variants[fastest], "variants": variants},
        }, b""

    def _bind(self, family: str, problem: dict[str, Any], seed: int) -> None:
        # Registers the runtime that compiled kernels call.
        import jax.experimental.mosaic.gpu  # noqa: F401

        from tuner.search_spaces.family import named_family

        self._family = named_family(family)
        self._problem = self._family.problem_class.from_dict(problem)
        self._operands = resolve(self._family.operands)(self._problem, seed)

    def _compile_baselines(self) -> list[Any]:
        import jax

        functions = resolve(self._family.baseline)(self._problem)
        return [jax.jit(f).lower(*self._operands).compile() for f in functions]

    def _prepare_output(self, seed: int) -> None:
        import jax.numpy as jnp

        from .compiling import output_spec
        from .verify import poisoned

        self._expected, self._tolerance = resolve(self._family.reference)(self._problem, self._operands, seed)
        spec = output_spec(self._family, self._problem)
        # Compiles the checks now: later, their first run would count against a program's deadline.
        self._out = poisoned(jnp.zeros(spec.shape, spec.dtype), self._expected, self._tolerance)
        self._verify()

    def _time_baselines(self, programs: dict[str, Any]) -> dict[str, dict[str, Any]]:
        import statistics

        from .timing import cupti, span

        calls = {name: (lambda p=p: p(*self._operands)) for name, p in programs.items()}
        single = all(len(cupti.kernels(call, 1)) == 1 for call in calls.values() for _ in range(2))
        if not single:
            cupti.release()
        self._timer = cupti if single else span
        self._method = self._timer.METHOD
        samples: dict[str, list[int]] = {name: [] for name in calls}
        for _ in range(5):
            for name, call in calls.items():
                samples[name] += self._timer.samples_ns(call, 5)
        return {
            name: {"us": statistics.median(ns) / 1000, "algorithm": _algorithm(programs[name].as_text())}
            for name, ns in samples.items()
        }

    def _load(self, program: bytes, arguments: int) -> Any:
        import jax
        from jax.experimental import serialize_executable

        in_tree = jax.tree.structure(((0,) * arguments, {}))
        return serialize_executable.deserialize_and_load(
            program, in_tree, jax.tree.structure(0), backend="gpu", execution_devices=jax.local_devices()[:1]
        )

    def measure(
        self, payload: bytes, *, runs_us: float, hopeless_us: float | None, started: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Runs one program once on a poisoned buffer, checks all of it, then times it.

        runs_us: device time to spend on timing. hopeless_us: above it one sample is enough.
        """
        import time

        from .verify import poisoned

        try:
            program = self._load(payload, len(self._operands) + 1)
        except Exception as error:  # noqa: BLE001 - any failure is a result
            return {**self._run_failure(error), "stage": "load"}, b""
        try:
            self._out = poisoned(self._out, self._expected, self._tolerance)
            self._out.block_until_ready()
            address = self._out.unsafe_buffer_pointer()
            started()
            before = time.perf_counter()
            self._run(program)
            self._out.block_until_ready()
            first_us = (time.perf_counter() - before) * 1e6
            if self._out.unsafe_buffer_pointer() != address:
                return {
                    "rung": "ran",
                    "stage": "verify",
                    "reason": "NOT_IN_PLACE output left the poisoned buffer",
                }, b""
            failure, error_ratio = self._verify()
            if failure:
                return failure, b""
            hopeless = hopeless_us is not None and first_us > hopeless_us + 500
            runs = 1 if hopeless else int(min(max(runs_us / max(first_us, 1), 5), 50))
            samples = self._timer.samples_ns(lambda: self._run(program), runs)
            failure, error_ratio = self._verify()
        except Exception as error:  # noqa: BLE001 - any failure is a result
            return self._run_failure(error), b""
        if failure:
            return failure, b""
        return {
            "rung": "timed",
            "stage": "",
            "reason": "",
            "samples_ns": samples,
            "max_error": error_ratio,
            **self._clocks(),
        }, b""

    def _run(self, program: Any) -> Any:
        self._out = program(*self._operands, self._out)
        return self._out

    def _verify(self) -> tuple[dict[str, Any] | None, float]:
        from .verify import worst_error

        worst, wrong = worst_error(self._out, self._expected, self._tolerance)
        if int(wrong) == 0:
            return None, float(worst)
        told = f"{int(wrong)} of {self._out.size} elements, worst {float(worst):.3g} x what is allowed"
        return {"rung": "ran", "stage": "verify", "reason": f"WRONG_OUTPUT {told}"}, float(worst)

    def _run_failure(self, error: Exception) -> dict[str, Any]:
        out_of_memory = "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()
        code = "OOM" if out_of_memory else "CRASHED"
        return {"rung": "compiled", "stage": "run", "reason": f"{code} {reason(error)}", "fault": True}

    def hold(self, payload: bytes, *, name: str, started: Any) -> tuple[dict[str, Any], bytes]:
        """Keeps a program loaded for the rounds of the final."""
        del started
        self._held[name] = self._load(payload, len(self._operands) + 1)
        return {}, b""

    def rounds(
        self, payload: bytes, *, rounds: int, runs: int, seed: int, started: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Times the held programs and the baseline in shuffled rounds.

        Returns:
          samples_ns: for each name, and `baseline`, the nanoseconds of every run, round by round.
        """
        del payload
        import random

        calls: dict[str, Any] = {
            name: (lambda p=program: self._run(p)) for name, program in self._held.items()
        }
        calls["baseline"] = lambda: self._baseline(*self._operands)
        order = random.Random(seed)
        samples: dict[str, list[list[int]]] = {name: [] for name in calls}
        started()
        for call in calls.values():
            call().block_until_ready()
        for _ in range(rounds):
            for name in order.sample(list(calls), len(calls)):
                samples[name].append(self._timer.samples_ns(calls[name], runs))
        return {"samples_ns": samples, **self._clocks()}, b""

    def _device(self) -> dict[str, Any]:
        import jax

        device = jax.local_devices()[0]
        return {
            "device_kind": device.device_kind,
            "compute_capability": device.compute_capability,
            "sm_count": device.core_count,
            "smem_optin_bytes": getattr(device, "shared_memory_per_block_optin", 0),
        }

    def _versions(self) -> dict[str, str]:
        import jax
        import jaxlib

        return {
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "cuda": jax.local_devices()[0].client.platform_version.replace("\n", " ")[:100],
        }

    def _clocks(self) -> dict[str, Any]:
        from .device import clocks

        return clocks()


def _algorithm(hlo: str) -> str:
    """What XLA chose: the custom calls and fusion kinds of the optimised module."""
    import re

    targets = re.findall(r'custom_call_target="([^"]+)"', hlo)
    algorithms = re.findall(r'"(?:selected_)?algorithm":"?(\w+)', hlo)
    kinds = re.findall(r'"kind":"(\w+)"', hlo)
    return " ".join(dict.fromkeys(targets + [f"algorithm={a}" for a in algorithms] + kinds)) or "elementwise"


if __name__ == "__main__":
    main()
