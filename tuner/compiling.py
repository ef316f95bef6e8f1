"""Compiling is a pure function of names and numbers: it needs no GPU and runs in any process."""

import dataclasses
import functools
import importlib
import importlib.util
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.search_spaces.architecture import Target
from tuner.search_spaces.family import KernelFamily, named_family

from .child import captured_log, telling_line


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
    if not find_ptxas():
        missing.append("ptxas (nvidia-cuda-nvcc, or the CUDA toolkit)")
    return " and ".join(missing)


def find_ptxas() -> str:
    """Where ptxas is: in the environment's wheels, as XLA looks for it, or on the path; or ""."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    wheels = (file for root in roots for file in root.glob("*/bin/ptxas"))
    return str(next(wheels, None) or shutil.which("ptxas") or "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileTask:
    """One configuration to compile: plain values only, so that any executor can carry it."""

    family: str
    problem: Mapping[str, Any]
    config: Mapping[str, Any]
    target: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON carries it."""
        return {
            f.name: dict(v) if isinstance(v := getattr(self, f.name), Mapping) else v
            for f in dataclasses.fields(self)
        }


def resolve(name: str) -> Any:
    """The object a `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def compile_program(task: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Lowers and compiles one configuration for its target.

    Returns:
      `{"rung", "stage", "reason", "lower_s", "compile_s", "registers", "spill_bytes"}` and the
      serialized program (empty unless compiled). The program takes the operands and the output
      buffer, which it donates: whatever poison lies in it is overwritten in place or stays.
    """
    import jax
    from jax.experimental import serialize_executable

    info: dict[str, Any] = {"rung": "legal", "stage": "lower", "reason": ""}
    started = time.perf_counter()
    with captured_log() as log:
        try:
            lowered = lowered_program(task)
            info |= {"rung": "lowered", "stage": "compile", "lower_s": time.perf_counter() - started}
            started = time.perf_counter()
            compiled = lowered.compile()
            info |= {"compile_s": time.perf_counter() - started, **_ptxas_report(log())}
            copies = hidden_copies(compiled.as_text())
            payload = serialize_executable.serialize(compiled)[0]
        except Exception as error:  # noqa: BLE001 - whatever JAX raises is a result
            jax.clear_caches()
            return info | {"reason": reason(error, log())}, b""
    if copies:
        return info | {"reason": f"HIDDEN_COPY the program copies: {copies[0]}"}, b""
    return info | {"rung": "compiled", "stage": ""}, payload


def lowered_program(task: Mapping[str, Any], *, compilable: bool = True) -> Any:
    """What JAX lowers one configuration to, for its target; raises whatever JAX raises.

    compilable: for a device that can be compiled for, which takes the CUDA plugin.
    """
    from .lowering import lowering_for

    family = named_family(task["family"])
    problem = family.problem_class.from_dict(task["problem"])
    config = family.config(task["config"])
    target = Target(**task["target"])
    with lowering_for(target):
        program = _program(family, problem, config, target)
        if compilable:
            return program.trace(*_specs(family, problem, target)).lower()
        specs = (*operand_specs(family, problem), output_spec(family, problem))
        return program.trace(*specs).lower(lowering_platforms=("cuda",))


def reason(error: BaseException, log: str = "") -> str:
    """Exception class and the first line that says something, never empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if not text or "Pass pipeline failed" in text:
        text = telling_line(log) or text or "no message"
    return f"{type(error).__name__} {text}"[:500]


def hidden_copies(hlo: str) -> list[str]:
    """Instructions of an optimised module that move data around the kernel itself."""
    moving = re.compile(
        r"= (\(.*?\)|\S+) (copy|copy-start|fusion|transpose|pad|slice|dynamic-update-slice)\("
    )
    return [line.strip()[:200] for line in hlo.splitlines() if moving.search(line)]


def _program(family: KernelFamily, problem: Any, config: Any, target: Target) -> Any:
    import jax

    kernel = resolve(family.build)(problem, config, target)

    def program(*arguments: Any) -> Any:
        return kernel(*arguments[:-1])

    output = len(operand_specs(family, problem))
    return jax.jit(program, donate_argnums=output, keep_unused=True)


def operand_specs(family: KernelFamily, problem: Any) -> tuple[Any, ...]:
    """Shapes and dtypes of the operands, without making them."""
    import jax

    return tuple(jax.eval_shape(functools.partial(resolve(family.operands), problem), 0))


def output_spec(family: KernelFamily, problem: Any) -> Any:
    """Shape and dtype of the output: the baseline's."""
    import jax

    return jax.eval_shape(resolve(family.baseline)(problem)[0], *operand_specs(family, problem))


def _specs(family: KernelFamily, problem: Any, target: Target) -> list[Any]:
    import jax

    from .lowering import compile_only_mesh

    everywhere = jax.sharding.NamedSharding(compile_only_mesh(target), jax.sharding.PartitionSpec())
    specs = (*operand_specs(family, problem), output_spec(family, problem))
    return [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=everywhere) for s in specs]


def _ptxas_report(log: str) -> dict[str, int]:
    """Registers a thread and bytes of spills, as ptxas prints them; the largest of all kernels."""
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    stores = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    loads = [int(n) for n in re.findall(r"(\d+) bytes spill loads", log)]
    report = {"registers": max(registers)} if registers else {}
    if stores or loads:
        report["spill_bytes"] = max(stores, default=0) + max(loads, default=0)
    return report
