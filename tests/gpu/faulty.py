"""Kernels with planted faults, as families our own processes can load, and the same faults in arrays."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.architecture import Target


def build_skipping_a_tile(problem: Any, config: Any, target: Target) -> Callable[..., Any]:
    """Our matmul, except that nobody computes the last tile of the raster."""
    from tuner.kernels.matmul_hopper import from_plan

    plan = matmul_hopper.plan(problem, config, target)
    return from_plan(dataclasses.replace(plan, tiles=plan.tiles - 1))


def build_dropping_a_k_tile(problem: Any, config: Any, target: Target) -> Callable[..., Any]:
    """Our matmul, except that the last tile_k of the sum is left out."""
    from tuner.kernels.matmul_hopper import from_plan

    plan = matmul_hopper.plan(problem, config, target)
    return from_plan(dataclasses.replace(plan, k_steps=plan.k_steps - 1))


SKIPS_A_TILE = dataclasses.replace(
    matmul_hopper.FAMILY, name="skips_a_tile", address="", build="tests.gpu.faulty:build_skipping_a_tile"
)
DROPS_A_K_TILE = dataclasses.replace(
    matmul_hopper.FAMILY, name="drops_a_k_tile", address="", build="tests.gpu.faulty:build_dropping_a_k_tile"
)


class PlantedFaults:
    """A session for `tuner.gpu_process` that plants faults in right outputs and says which were caught."""

    def open(self, payload: bytes, *, family: str, problem: dict[str, Any], started: Any, **_: Any) -> Any:
        """{fault: caught} for one problem, with `right` for the untouched output."""
        del payload, started
        import jax.numpy as jnp
        import numpy as np

        from tuner.compiling import resolve
        from tuner.search_spaces.family import named_family
        from tuner.verify import worst_error

        found = named_family(family)
        parsed: Any = found.problem_class.from_dict(problem)
        operands = resolve(found.operands)(parsed, 0)
        others = resolve(found.operands)(parsed, 1)
        expected, tolerance = resolve(found.reference)(parsed, operands, 0)
        product = resolve(found.baseline)(parsed)[0]
        is_copy = found.kernel == "copy"

        def right(given: Any) -> Any:
            return given[0] if is_copy else product(*given)

        def caught(out: Any) -> bool:
            return int(worst_error(out, expected, tolerance)[1]) > 0

        out, stale = right(operands), right(others)
        faults = {"right": out, "edge row stale": out.at[-1].set(stale[-1])}
        if is_copy:
            faults["one tile stale"] = out.at[-64:, -64:].set(stale[-64:, -64:])
            faults["one element off by a bit"] = out.at[-1, -1].set(
                jnp.nextafter(out[-1, -1], jnp.asarray(np.inf, out.dtype))
            )
        else:
            lhs, rhs = operands
            depth = 64
            first = lhs[-128:, :depth].astype(jnp.float32) @ rhs[:depth, -256:].astype(jnp.float32)
            second = lhs[-128:, depth : 2 * depth].astype(jnp.float32) @ rhs[depth : 2 * depth, -256:].astype(
                jnp.float32
            )
            tile = expected[-128:, -256:]
            faults["one k tile dropped"] = out.at[-128:, -256:].set((tile - first).astype(out.dtype))
            # A stage overwritten before it was read counts its successor twice.
            faults["one stage reused too early"] = out.at[-128:, -256:].set(
                (tile - first + second).astype(out.dtype)
            )
        return {name: caught(array) for name, array in faults.items()}, b""


COPY_FAMILY = copy.FAMILY
