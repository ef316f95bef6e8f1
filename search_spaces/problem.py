"""Problems: what the user has. Frozen, normalised once, keyed by one canonical text."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from .errors import UsageError, nearest_name

# Bits per element of every type JAX has.
DTYPE_BITS: Mapping[str, int] = {
    "bool": 8,
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    "complex64": 64,
    "complex128": 128,
    **dict.fromkeys(
        (
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3",
            "float8_e3m4",
            "float8_e4m3b11fnuz",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ),
        8,
    ),
    "float4_e2m1fn": 4,
}

_ALIASES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "s8": "int8",
    "i8": "int8",
    "i32": "int32",
    "s32": "int32",
    "u8": "uint8",
    "fp8_e4m3": "float8_e4m3fn",
    "f8e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e5m2": "float8_e5m2",
}


# JAX indexes with 32-bit integers.
_MOST = 2**31 - 1


def dtype_name(value: object) -> str:
    """The canonical JAX name of a dtype given as a name, an alias, a NumPy dtype or a scalar type."""
    name = (
        value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    )
    if not isinstance(name, str):
        raise UsageError(f"dtype={value!r} is not a type name", fix="give a JAX dtype such as bfloat16")
    name = _ALIASES.get(name.lower(), name.lower())
    if name not in DTYPE_BITS:
        raise UsageError(f"unknown dtype {value!r}", fix=nearest_name(name, DTYPE_BITS))
    return name


def itemsize_bytes(dtype: str) -> int:
    """Bytes per element; sub-byte types are packed and have none of their own."""
    return DTYPE_BITS[dtype] // 8


def whole_number(name: str, value: object, *, least: int = 1) -> int:
    """`value` as an int: Python and NumPy integers only, never text, bools or floats."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise UsageError(f"{name}={value!r} is a {type(value).__name__}", fix=f"give {name} as an integer")
    if value < least:
        raise UsageError(
            f"{name}={value} is below {least}", fix=f"give {name} as an integer of at least {least}"
        )
    if value > _MOST:
        raise UsageError(f"{name}={value} is above {_MOST}", fix=f"give {name} within JAX's 32-bit indices")
    return int(value)


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}={value!r} is unknown", fix=f"choose from {', '.join(choices)}")


class Problem:
    """What every problem class offers; `kernel` is the word the command line uses for it."""

    kernel: ClassVar[str]

    @property
    def flops(self) -> int:
        """Arithmetic the problem needs."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Least traffic the problem needs."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Every field, plain ints and strings."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        """One canonical text per problem; equal problems have equal keys in every process."""
        return json.dumps({"kernel": self.kernel, **self.to_dict()}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Builds a problem from named fields; an unknown or missing name is one clear error."""
        known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in fields:
            if name not in known:
                raise UsageError(f"unknown key {name!r} for {cls.kernel}", fix=nearest_name(name, known))
        for name, field in known.items():
            if field.default is dataclasses.MISSING and name not in fields:
                raise UsageError(f"{cls.kernel} needs {name}=", fix=f"add {name}=...")
        return cls(**fields)

    def __str__(self) -> str:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        shown = {k: v for k, v in self.to_dict().items() if v != defaults[k] and not self._implied(k)}
        return " ".join([self.kernel, *(f"{name}={value}" for name, value in shown.items())])

    def _implied(self, name: str) -> bool:
        del name
        return False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MatmulProblem(Problem):
    """`out[batch, m, n] = lhs @ rhs`, summed over k.

    lhs is stored `(m, k)` ("mk") or `(k, m)` ("km"); rhs `(k, n)` ("kn") or `(n, k)` ("nk").
    rhs_dtype and out_dtype default to dtype; acc_dtype to int32 for integers and float32 otherwise.

    Raises:
      UsageError: a size below 1 or not an integer, an unknown dtype or layout.
    """

    kernel: ClassVar[str] = "matmul"

    m: int
    n: int
    k: int
    dtype: str
    batch: int = 1
    rhs_dtype: str = ""
    acc_dtype: str = ""
    out_dtype: str = ""
    lhs: str = "mk"
    rhs: str = "kn"

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("m", "n", "k", "batch"):
            put(self, name, whole_number(name, getattr(self, name)))
        put(self, "dtype", dtype_name(self.dtype))
        put(self, "rhs_dtype", dtype_name(self.rhs_dtype or self.dtype))
        put(self, "acc_dtype", dtype_name(self.acc_dtype or self._natural_accumulator()))
        put(self, "out_dtype", dtype_name(self.out_dtype or self.dtype))
        _one_of("lhs", self.lhs, ("mk", "km"))
        _one_of("rhs", self.rhs, ("kn", "nk"))

    def _natural_accumulator(self) -> str:
        if self.dtype in ("float64", "complex64", "complex128"):
            return self.dtype
        return "int32" if "int" in self.dtype or self.dtype == "bool" else "float32"

    def _implied(self, name: str) -> bool:
        implied = {"rhs_dtype": self.dtype, "out_dtype": self.dtype, "acc_dtype": self._natural_accumulator()}
        return bool(implied.get(name) == getattr(self, name))

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least traffic: each operand read once, the output written once."""
        lhs, rhs, out = (DTYPE_BITS[d] for d in (self.dtype, self.rhs_dtype, self.out_dtype))
        return self.batch * (self.m * self.k * lhs + self.k * self.n * rhs + self.m * self.n * out) // 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CopyProblem(Problem):
    """`out = x` for a row-major `(m, n)` array: m rows, n columns.

    Raises:
      UsageError: a size below 1 or not an integer, an unknown dtype.
    """

    kernel: ClassVar[str] = "copy"

    m: int
    n: int
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", whole_number("m", self.m))
        object.__setattr__(self, "n", whole_number("n", self.n))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def flops(self) -> int:
        """None: a copy computes nothing."""
        return 0

    @property
    def bytes(self) -> int:
        """Every element read once and written once."""
        return 2 * self.m * self.n * DTYPE_BITS[self.dtype] // 8


def unmovable(problem: CopyProblem) -> str:
    """Why the bytes of a copy cannot be moved as unsigned integers within one program, or ""."""
    dtype, bits = problem.dtype, DTYPE_BITS[problem.dtype]
    if dtype == "bool":
        return "copies bytes, and Mosaic takes a bool for one bit, not bool"
    if dtype.startswith("complex"):
        return f"copies types that XLA takes for integers in place, not {dtype}"
    if bits > 32:
        return f"copies types of at most 32 bits, as JAX has outside its 64-bit mode, not {dtype}"
    if problem.n * bits % 8:
        return f"copies rows of whole bytes, not n={problem.n} of {dtype}"
    return ""
