"""KernelFamily: one frozen description of a tunable kernel, ours and later users' alike."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .architecture import Target
from .errors import UnsupportedError, UsageError, nearest_name
from .problem import Problem, whole_number
from .rule import Columns, Rule

# What a configuration field holds; None is one of the names where an axis offers it.
Value = int | str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One searched field and every value it may take, in order.

    `limit` names a derived column: the field runs over the values up to it. Such an axis is read
    by no other rule than that one, and is never multiplied out.
    """

    name: str
    values: Sequence[Value]
    limit: str = ""

    @property
    def column(self) -> np.ndarray:
        """The values as an array; None is spelt "" there."""
        if isinstance(self.values, range):
            return np.arange(self.values.start, self.values.stop, self.values.step, dtype=np.int64)
        if self.values and isinstance(self.values[-1], int):
            return np.array(self.values, dtype=np.int64)
        return np.array(["" if v is None else str(v) for v in self.values], dtype=np.str_)


@dataclasses.dataclass(frozen=True)
class KernelFamily:
    """A tunable kernel.

    `build`, `operands`, `reference` and `baseline` are `module:attribute` names, resolved in our own
    processes only:
      build(problem, config, target) -> function of the operands
      operands(problem, seed) -> tuple of arrays on the default device
      reference(problem, operands, seed) -> (expected, tolerance); tolerance None asks for equal bits
      baseline(problem) -> functions of the operands, the fastest counts; their output is the kernel's shape
    `supports` gives the reason a problem cannot run on a target at all, or "".
    `predict_us` orders configurations (columns in, microseconds out); it never forbids.
    `reported` are the derived quantities `explain` shows. `probes` are the problems `prove` draws
    configurations of, `published` the values JAX's own kernels are swept over, by field.
    `address` is where other processes find the family: its name, or for one outside this package
    `module:attribute`. REVISION is raised when generated code changes.
    """

    name: str
    revision: int
    problem_class: type[Problem]
    config_class: type[Any]
    axes: Callable[[Any, Target], tuple[Axis, ...]]
    rules: tuple[Rule, ...]
    derived: Mapping[str, Callable[..., Any]]
    default_config: Callable[[Any, Target], Any]
    supports: Callable[[Any, Target], str]
    predict_us: Callable[..., Any]
    build: str
    operands: str
    reference: str
    baseline: str
    reported: tuple[str, ...] = ()
    probes: tuple[Problem, ...] = ()
    published: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    address: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.address or self.name)

    @property
    def kernel(self) -> str:
        """The word the command line uses."""
        return self.problem_class.kernel

    def columns(self, problem: Problem, target: Target, fields: Mapping[str, Any]) -> Columns:
        """Problem, target and configuration fields as columns, derived quantities on demand."""
        given = {
            **problem.to_dict(),
            "sm_count": target.sm_count,
            "smem_limit_bytes": target.smem_optin_bytes,
            "target": target,
            "problem": problem,
            **fields,
        }
        return Columns(given, self.derived)

    def config_columns(self, problem: Problem, target: Target, config: Any) -> Columns:
        """One configuration as scalar columns."""
        fields = {k: "" if v is None else v for k, v in dataclasses.asdict(config).items()}
        return self.columns(problem, target, fields)

    def config(self, fields: Mapping[str, Any]) -> Any:
        """A configuration from named fields; fields left out take the class's defaults.

        Raises:
          UsageError: an unknown field or value, or a number that is not an integer.
        """
        known = {f.name: f for f in dataclasses.fields(self.config_class)}
        clean: dict[str, Value] = {}
        for name, value in fields.items():
            if name not in known:
                raise UsageError(f"unknown field {name!r} of {self.name}", fix=nearest_name(name, known))
            choices = known[name].metadata.get("choices")
            if choices is None:
                clean[name] = whole_number(name, value, least=0)
            elif value in choices:
                clean[name] = value
            else:
                raise UsageError(
                    f"{name}={value!r} is unknown",
                    fix=f"choose from {', '.join(str(c).lower() if c is None else str(c) for c in choices)}",
                )
        return self.config_class(**clean)

    def parse_config(self, text: str) -> Any:
        """A configuration from `name=value,...` as the command line takes it."""
        known = {f.name: f for f in dataclasses.fields(self.config_class)}
        fields: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, sign, value = part.partition("=")
            if not sign:
                raise UsageError(f"{part!r} is not name=value", fix="write --config name=value,name=value")
            if name in fields:
                raise UsageError(f"{name} is given twice", fix=f"give {name}= once")
            integral = name in known and "choices" not in known[name].metadata
            if integral:
                try:
                    fields[name] = int(value)
                except ValueError:
                    raise UsageError(
                        f"{name}={value!r} is not a whole number", fix=f"give {name} as an integer"
                    ) from None
            else:
                fields[name] = None if value.lower() in ("none", "null", "") else value
        return self.config(fields)


def choice(*choices: Value, default: Value) -> Any:
    """A configuration field that takes one of a few names."""
    return dataclasses.field(default=default, metadata={"choices": choices})


@functools.cache
def families() -> Mapping[str, KernelFamily]:
    """Every family of this package, found by its module's `FAMILY`."""
    package = importlib.import_module(__package__)
    modules = (
        importlib.import_module(f"{__package__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)
    )
    found = [m.FAMILY for m in modules if hasattr(m, "FAMILY")]
    return {f.name: f for f in found}


def named_family(name: str) -> KernelFamily:
    """A family by its name or, for a user's own, by `module:attribute`.

    Raises:
      UsageError: no such family, or the attribute is not one.
    """
    if name in families():
        return families()[name]
    module, sign, attribute = name.partition(":")
    if not sign:
        raise UsageError(f"unknown kernel family {name!r}", fix=nearest_name(name, families()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a user's module raises
        raise UsageError(
            f"kernel {name!r} cannot be imported: {type(error).__name__} {error}".splitlines()[0],
            fix="give module:attribute",
        ) from error
    if not isinstance(found, KernelFamily):
        raise UsageError(f"{name!r} is a {type(found).__name__}", fix="name a KernelFamily")
    return dataclasses.replace(found, address=name)


def problem_class(kernel: str) -> type[Problem]:
    """The problem class of a kernel's name, or of a user's `module:attribute`."""
    if ":" in kernel:
        return named_family(kernel).problem_class
    classes = {f.kernel: f.problem_class for f in families().values()}
    if kernel not in classes:
        raise UsageError(f"unknown kernel {kernel!r}", fix=nearest_name(kernel, classes))
    return classes[kernel]


def family_for(problem: Problem, target: Target, kernel: str = "") -> KernelFamily:
    """The family that runs `problem` on `target`.

    Raises:
      UnsupportedError: none does; the message gives each family's reason.
    """
    candidates = (
        [named_family(kernel)]
        if ":" in kernel
        else [f for f in families().values() if f.kernel == problem.kernel]
    )
    reasons = {f.name: f.supports(problem, target) for f in candidates}
    for family in candidates:
        if not reasons[family.name]:
            return family
    told = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
    raise UnsupportedError(
        f"no kernel runs {problem} on {target.arch}: {told}", fix="change the type, layout or --arch"
    )
