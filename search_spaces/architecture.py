"""Architectures and devices: one frozen row each, every number with its source.

CUDA = CUDA C++ Programming Guide, "Technical Specifications per Compute Capability";
PTX = PTX ISA 9.0; vendor = the vendor's datasheet or architecture white paper of the part.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from .errors import UnsupportedError, UsageError, nearest_name

# Which hardware mechanism tells a block that its data has arrived in shared memory.
Synchronisation = Literal["cp_async", "mbarrier", "mbarrier_tx", "cluster_mbarrier", "tensor_core_mbarrier"]

KIB = 1024
# CUDA: every architecture since sm_75 allows 1024 threads a block (8 warpgroups of 128) and has
# 65536 32-bit registers an SM, at most 255 a thread.
MAX_THREADS_PER_BLOCK = 1024
WARPGROUP_THREADS = 128
REGISTERS_PER_SM = 65536
MAX_REGISTERS_PER_THREAD = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """What every device of one compute capability shares.

    smem_optin_bytes: CUDA, "Maximum amount of shared memory per thread block".
    max_cluster_blocks: CUDA, portable cluster size; 1 where there are no clusters.
    flops_per_clock_per_sm: dense 16-bit multiply-adds x 2 per SM and clock, from the vendor's
      peak rate / (SMs x boost clock); 0 where not looked up.
    """

    name: str
    smem_optin_bytes: int
    max_cluster_blocks: int
    synchronisation: tuple[Synchronisation, ...]
    reference_device: str
    flops_per_clock_per_sm: int = 0

    @property
    def compute_capability(self) -> str:
        """`"9.0"` for sm_90, as JAX and NVML spell it."""
        digits = self.name.removeprefix("sm_")
        return f"{digits[:-1]}.{digits[-1]}"

    @property
    def has_tma(self) -> bool:
        """Bulk tensor copies that complete on a barrier: Hopper and newer (PTX, cp.async.bulk)."""
        return "mbarrier_tx" in self.synchronisation


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The device code is generated for; persistent kernels bake the SM count in.

    flops_per_clock_per_sm: dense 16-bit multiply-adds x 2 per SM and clock; 0 where not looked up.
    reference: the row stands for its architecture rather than a card at hand.
    """

    device_kind: str
    arch: str
    sm_count: int
    smem_optin_bytes: int
    l2_bytes: int = 0
    dram_bytes_per_s: float = 0.0
    max_sm_clock_mhz: int = 0
    power_limit_w: int = 0
    flops_per_clock_per_sm: int = 0
    reference: bool = False

    @property
    def architecture(self) -> Architecture:
        """The row of this target's compute capability."""
        return ARCHITECTURES[self.arch]

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """Every field, plain values."""
        return dataclasses.asdict(self)


_AMPERE: tuple[Synchronisation, ...] = ("cp_async", "mbarrier")
_HOPPER: tuple[Synchronisation, ...] = (*_AMPERE, "mbarrier_tx", "cluster_mbarrier")
_BLACKWELL: tuple[Synchronisation, ...] = (*_HOPPER, "tensor_core_mbarrier")

ARCHITECTURES: Mapping[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("sm_80", 163 * KIB, 1, _AMPERE, "NVIDIA A100-SXM4-80GB", 2048),
        Architecture("sm_86", 99 * KIB, 1, _AMPERE, "NVIDIA RTX A6000", 1024),
        Architecture("sm_87", 163 * KIB, 1, _AMPERE, "NVIDIA Jetson AGX Orin", 2048),
        Architecture("sm_89", 99 * KIB, 1, _AMPERE, "NVIDIA L4", 1024),
        # 8 is the portable cluster size; clusters of 16 ran on an H200 (measured).
        Architecture("sm_90", 227 * KIB, 8, _HOPPER, "NVIDIA H200", 4096),
        Architecture("sm_100", 227 * KIB, 8, _BLACKWELL, "NVIDIA B200", 8192),
        Architecture("sm_103", 227 * KIB, 8, _BLACKWELL, "NVIDIA B300", 8192),
        Architecture("sm_110", 227 * KIB, 8, _BLACKWELL, "NVIDIA Thor", 8192),
        # Consumer Blackwell: TMA and clusters compile, tensor memory does not exist (PTX, tcgen05).
        Architecture("sm_120", 99 * KIB, 8, _HOPPER, "NVIDIA RTX PRO 6000 Blackwell", 1024),
        Architecture("sm_121", 99 * KIB, 8, _HOPPER, "NVIDIA GB10", 1024),
    )
}

# device_kind as JAX and NVML print it: architecture, SMs, L2 MiB, DRAM GB/s, maximum SM clock MHz.
# vendor figures; the H200 row was read off a card (L2 60 MB, 1980 MHz).
_DEVICES: tuple[tuple[str, str, int, int, int, int], ...] = (
    ("NVIDIA A100-SXM4-40GB", "sm_80", 108, 40, 1555, 1410),
    ("NVIDIA A100-SXM4-80GB", "sm_80", 108, 40, 2039, 1410),
    ("NVIDIA A100-PCIE-40GB", "sm_80", 108, 40, 1555, 1410),
    ("NVIDIA A100 80GB PCIe", "sm_80", 108, 40, 1935, 1410),
    ("NVIDIA A30", "sm_80", 56, 24, 933, 1440),
    ("NVIDIA A10", "sm_86", 72, 6, 600, 1695),
    ("NVIDIA A40", "sm_86", 84, 6, 696, 1740),
    ("NVIDIA RTX A6000", "sm_86", 84, 6, 768, 1800),
    ("NVIDIA GeForce RTX 3090", "sm_86", 82, 6, 936, 1695),
    ("NVIDIA Jetson AGX Orin", "sm_87", 16, 4, 204, 1300),
    ("NVIDIA L4", "sm_89", 58, 48, 300, 2040),
    ("NVIDIA L40S", "sm_89", 142, 96, 864, 2520),
    ("NVIDIA GeForce RTX 4090", "sm_89", 128, 72, 1008, 2520),
    ("NVIDIA H100 80GB HBM3", "sm_90", 132, 50, 3350, 1980),
    ("NVIDIA H100 PCIe", "sm_90", 114, 50, 2039, 1755),
    ("NVIDIA H100 NVL", "sm_90", 132, 50, 3938, 1785),
    ("NVIDIA H200", "sm_90", 132, 60, 4800, 1980),
    ("NVIDIA H200 NVL", "sm_90", 132, 60, 4800, 1785),
    ("NVIDIA H20", "sm_90", 78, 60, 4000, 1980),
    ("NVIDIA GH200 480GB", "sm_90", 132, 50, 4000, 1980),
    ("NVIDIA B200", "sm_100", 148, 126, 8000, 1965),
    ("NVIDIA GB200", "sm_100", 152, 126, 8000, 2062),
    ("NVIDIA B300", "sm_103", 148, 126, 8000, 1965),
    ("NVIDIA Thor", "sm_110", 20, 32, 273, 1575),
    ("NVIDIA GeForce RTX 5090", "sm_120", 170, 96, 1792, 2407),
    ("NVIDIA RTX PRO 6000 Blackwell", "sm_120", 188, 128, 1792, 2617),
    ("NVIDIA GB10", "sm_121", 48, 24, 273, 2418),
)


def _device_row(kind: str, arch: str, sms: int, l2_mib: int, dram_gb_s: int, clock_mhz: int) -> Target:
    return Target(
        device_kind=kind,
        arch=arch,
        sm_count=sms,
        smem_optin_bytes=ARCHITECTURES[arch].smem_optin_bytes,
        l2_bytes=l2_mib * KIB * KIB,
        dram_bytes_per_s=dram_gb_s * 1e9,
        max_sm_clock_mhz=clock_mhz,
        flops_per_clock_per_sm=_LIMITED_RATES.get(kind, ARCHITECTURES[arch].flops_per_clock_per_sm),
    )


# vendor: 148 TFLOP/s on 78 SMs; a quarter of the tensor cores' rate of other Hopper parts.
_LIMITED_RATES = {"NVIDIA H20": 1024}

DEVICES: Mapping[str, Target] = {row[0]: _device_row(*row) for row in _DEVICES}


def architecture(name: str) -> Architecture:
    """The row of `sm_90`, `90` or `9.0`.

    Raises:
      UnsupportedError: below sm_80, where Mosaic GPU compiles nothing.
      UsageError: any other name.
    """
    digits = name.strip().lower().removeprefix("sm_").replace(".", "").removesuffix("a")
    if row := ARCHITECTURES.get(f"sm_{digits}"):
        return row
    if digits.isdigit() and 10 <= int(digits) < 80:
        raise UnsupportedError(
            f"{name} is below sm_80", fix="Mosaic GPU compiles for sm_80 and newer; choose a newer --arch"
        )
    raise UsageError(f"unknown architecture {name!r}", fix=nearest_name(f"sm_{digits}", ARCHITECTURES))


def reference_target(arch: str) -> Target:
    """The reference row that stands for an architecture, marked as such."""
    return dataclasses.replace(DEVICES[architecture(arch).reference_device], reference=True)


def device_target(name: str) -> Target:
    """The row of a known device, by its `device_kind` in any case and spacing.

    Raises:
      UsageError: a device without a row.
    """
    wanted = " ".join(name.lower().split())
    for kind, row in DEVICES.items():
        if wanted in (kind.lower(), kind.lower().removeprefix("nvidia ")):
            return row
    raise UsageError(f"unknown device {name!r}", fix=nearest_name(name, DEVICES))
