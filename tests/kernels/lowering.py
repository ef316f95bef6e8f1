"""Kernels through JAX's real lowering and through its interpreter, both without a GPU."""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks  # no public way to ask for races

from tuner.compiling import operand_specs, resolve
from tuner.lowering import lowering_for
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.family import KernelFamily
from tuner.search_spaces.problem import Problem

SM_90 = reference_target("sm_90")
# Few blocks, so that a small problem keeps each of them busy for several tiles.
FOUR_SMS = dataclasses.replace(SM_90, sm_count=4)


def lowered(family: KernelFamily, problem: Problem, config: Any, target: Target = SM_90) -> Any:
    """What JAX makes of the configuration for the target; raises whatever JAX raises."""
    with lowering_for(target):
        kernel = resolve(family.build)(problem, config, target)
        return jax.jit(kernel).trace(*operand_specs(family, problem)).lower(lowering_platforms=("cuda",))


class RaceError(Exception):
    """The interpreter saw two accesses that nothing orders; what it printed names them."""


def interpreted(
    family: KernelFamily, problem: Problem, config: Any, target: Target = FOUR_SMS, *, seed: int = 0
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Operands and output of a run in JAX's interpreter, which starts from NaN and looks for races."""
    operands = resolve(family.operands)(problem, seed)
    try:
        with (
            lowering_for(target),
            plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)),
        ):
            out = jax.block_until_ready(resolve(family.build)(problem, config, target)(*operands))
        if gpu_callbacks.get_races().races_found:
            raise RaceError
    except jax.errors.JaxRuntimeError as error:
        # JAX 0.12 stops at the first race, 0.11 runs to the end.
        if "RACE DETECTED" in str(error):
            raise RaceError from error
        raise
    finally:
        gpu_callbacks.reset_gpu_interpret_mode_state()
    return operands, out
