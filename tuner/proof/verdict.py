"""What JAX and ptxas say of a configuration. Runs in worker processes, asks no rule."""

import functools
import hashlib
import importlib.util
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.child import captured_log
from tuner.compiling import lowered_program, reason


def verdict(task: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Builds, lowers and, where `task["compile"]` says so, compiles one configuration.

    task: as a CompileTask, with `compilable` (lower for a device that can be compiled for) and `compile`.

    Returns:
      `lowered`: whether JAX lowered it. `refused_by`: `jax`, `ptxas`, or `kernel` where our own code
      raised. `reason`. `digest`: of the program without debug locations. `smem_bytes`: dynamic shared
      memory of its launch. `compiled`: whether ptxas took it, None where it was not asked.
    """
    import jax

    jax.config.update("jax_traceback_filtering", "off")
    found: dict[str, Any] = {"lowered": False, "refused_by": "", "reason": "", "digest": "", "smem_bytes": 0}
    found["compiled"] = None
    with captured_log() as log:
        try:
            lowered = lowered_program(task, compilable=task["compilable"])
            text = module_text(lowered)
            found |= {"lowered": True, "digest": digest(text), "smem_bytes": launch_smem_bytes(text)}
        except Exception as error:  # noqa: BLE001 - whatever is raised is a verdict
            return found | {"refused_by": raised_by(error), "reason": reason(error, log())}, b""
        if task["compile"]:
            try:
                lowered.compile()
                found["compiled"] = True
            except Exception as error:  # noqa: BLE001
                found |= {"compiled": False, "refused_by": "ptxas", "reason": reason(error, log())}
    return found, b""


def raised_by(error: BaseException) -> str:
    """`jax` where the exception is of jax or jaxlib, or left their code; else `kernel`."""
    # JAX gives some of its errors the traceback of the user's code.
    if type(error).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return "jax"
    frames = traceback.extract_tb(error.__traceback__)
    return "jax" if frames and _of_jax(frames[-1].filename) else "kernel"


def _of_jax(filename: str) -> bool:
    return any(root in Path(filename).parents for root in _jax_folders())


@functools.cache
def _jax_folders() -> tuple[Path, ...]:
    specs = (importlib.util.find_spec(name) for name in ("jax", "jaxlib"))
    return tuple(Path(spec.origin).parent for spec in specs if spec and spec.origin)


def digest(text: str) -> str:
    """A short text for the text of a module."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def launch_smem_bytes(text: str) -> int:
    """Dynamic shared memory that a module's text launches its kernel with: the last operand of gpu.launch."""
    (operands,) = re.findall(r'gpu\.launch"\(([^)]*)\)', text)
    constant = operands.rpartition("%")[2]
    (value,) = re.findall(rf'%{constant} = "[^"]*arith\.constant"\(\) (?:<)?{{value = (\d+) : i32}}', text)
    return int(value)


def module_text(lowered: Any) -> str:
    """The program and the kernel in it, printed without debug locations."""
    from jax.extend.mlir import ir

    original = lowered.compiler_ir("stablehlo")
    kernels = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call" and "mhlo.backend_config" in operation.attributes:
            kernels.append(_kernel_text(operation.attributes["mhlo.backend_config"]["module"].value_bytes))
            operation.attributes["mhlo.backend_config"] = ir.StringAttr.get("")
        return ir.WalkResult.ADVANCE

    with original.context:
        # What is lowered is still to be compiled.
        module = original.operation.clone()
        module.operation.walk(visit)
        program = module.operation.get_asm(enable_debug_info=False)
    return "\n".join([program, *kernels])


def _kernel_text(bytecode: bytes) -> str:
    from jax.experimental.mosaic.gpu import dialect
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    dialect.register_dialect(context)
    with context:
        module = ir.Module.parse(bytecode)
        # Counts the kernels that this process has lowered.
        del module.operation.attributes["mosaic_gpu.dump_basename"]
        return str(module.operation.get_asm(enable_debug_info=False))
