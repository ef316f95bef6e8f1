"""GPUs as NVML sees them: which there are, what they are, how they run, who else uses them."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from tuner.search_spaces.architecture import ARCHITECTURES, DEVICES, Target, reference_target
from tuner.search_spaces.errors import NoGpuError, UsageError

# CUDA C++ Programming Guide: FP32 cores an SM; NVML counts cores, not SMs.
_CORES_PER_SM = {"8.0": 64}
_CORES_PER_SM_ELSEWHERE = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (or MIG slice) of this machine."""

    index: int
    uuid: str
    target: Target


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError as error:
        raise NoGpuError("the NVML bindings are not installed", fix="install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpuError("no NVIDIA driver answers", fix=NO_GPU_FIX) from error
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


NO_GPU_FIX = (
    "run on a machine with an NVIDIA GPU, or add --deviceless --arch sm_90 to compile and rank without one"
)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _target(nvml: Any, handle: Any) -> Target:
    kind = _text(nvml.nvmlDeviceGetName(handle))
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    arch = f"sm_{major}{minor}"
    if arch not in ARCHITECTURES:
        raise NoGpuError(f"{kind} is {arch}, which Mosaic GPU does not compile for", fix="use sm_80 or newer")
    known = DEVICES.get(kind) or reference_target(arch)
    try:
        sms = nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount
    except (nvml.NVMLError, AttributeError):
        cores = nvml.nvmlDeviceGetNumGpuCores(handle)
        sms = cores // _CORES_PER_SM.get(f"{major}.{minor}", _CORES_PER_SM_ELSEWHERE)
    return dataclasses.replace(
        known,
        device_kind=kind,
        sm_count=sms,
        max_sm_clock_mhz=nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        power_limit_w=_or_zero(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000),
        reference=False,
    )


def _or_zero(nvml: Any, read: Any) -> int:
    try:
        return int(read())
    except nvml.NVMLError:
        return 0


def _handles(nvml: Any) -> list[tuple[int, Any]]:
    """Handles of the GPUs this process may use, in CUDA's order: `CUDA_VISIBLE_DEVICES` honoured."""
    count = nvml.nvmlDeviceGetCount()
    every = [(i, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return every
    chosen = []
    for part in filter(None, (p.strip() for p in visible.split(","))):
        if part.lstrip("-").isdigit():
            if not 0 <= int(part) < count:
                # CUDA ignores everything from the first index that does not exist.
                break
            chosen.append(every[int(part)])
        else:
            try:
                chosen.append((len(chosen), nvml.nvmlDeviceGetHandleByUUID(part)))
            except nvml.NVMLError:
                matching = [(i, h) for i, h in every if _text(nvml.nvmlDeviceGetUUID(h)).startswith(part)]
                chosen += matching[:1]
    return chosen


def gpus() -> list[Gpu]:
    """Every GPU this process may use.

    Raises:
      NoGpuError: no driver, or no GPU visible.
    """
    with _nvml() as nvml:
        found = [
            Gpu(position, _text(nvml.nvmlDeviceGetUUID(handle)), _target(nvml, handle))
            for position, (_, handle) in enumerate(_handles(nvml))
        ]
    if not found:
        raise NoGpuError("no GPU is visible to this process", fix="check CUDA_VISIBLE_DEVICES; " + NO_GPU_FIX)
    return found


def chosen_gpus(text: str | None) -> list[Gpu]:
    """The GPUs of `--gpus 0,1`; the first one by default. All must be of one kind.

    Raises:
      UsageError: an index that is no GPU here, or unlike GPUs.
    """
    found = gpus()
    if text is None:
        return found[:1]
    try:
        wanted = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--gpus {text!r} is not a list of indices", fix="write --gpus 0,1") from None
    for index in wanted:
        if not 0 <= index < len(found):
            raise UsageError(f"--gpus {index} is not here", fix=f"choose from 0 to {len(found) - 1}")
    chosen = [found[i] for i in dict.fromkeys(wanted)]
    if len({g.target for g in chosen}) > 1:
        raise UsageError("--gpus names unlike GPUs", fix="sweep one kind of GPU at a time")
    return chosen


def driver_version() -> str:
    """The driver's version."""
    with _nvml() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion())


def foreign_processes(gpu: Gpu) -> list[int]:
    """Process ids of others that hold a context on the card."""
    with _nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        try:
            return [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid != os.getpid()]
        except nvml.NVMLError:
            return []


def clocks() -> dict[str, Any]:
    """SM clock (MHz), power (W) and throttle reasons (NVML's bit mask) of this process's GPU now."""
    import pynvml as nvml

    if not _CLOCK_HANDLE:
        nvml.nvmlInit()
        _CLOCK_HANDLE.append(nvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"]))
    handle = _CLOCK_HANDLE[0]
    read: dict[str, Any] = {}
    with contextlib.suppress(nvml.NVMLError):
        read["sm_clock_mhz"] = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        read["power_w"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        read["throttle_reasons"] = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return read


_CLOCK_HANDLE: list[Any] = []
