"""Which configuration is best here? Layers of answers, from what was pinned to what is predicted."""

import contextlib
import contextvars
import dataclasses
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tuner.results.database import default_url, parsed
from tuner.results.errors import NoDatabaseError
from tuner.results.nearest import nearest
from tuner.results.records import Best, DeviceIdentity
from tuner.results.shipped import shipped
from tuner.results.store import Store
from tuner.search_spaces.architecture import DEVICES, Target, device_target, reference_target
from tuner.search_spaces.errors import ConfigNotFoundError, UsageError
from tuner.search_spaces.family import KernelFamily, family_for
from tuner.search_spaces.problem import Problem
from tuner.search_spaces.rule import violations
from tuner.search_spaces.space import LegalSpace

OnMiss = Literal["nearest", "predict", "error"]
Source = Literal["overlay", "measured", "shared", "shipped", "imported", "nearest", "predicted"]


@dataclasses.dataclass(frozen=True, slots=True)
class BestConfig:
    """An answer: the configuration, where it comes from, and why this one.

    time_us and ratio (baseline time / own time) are those of the record it comes from; None when predicted.
    """

    config: Any
    source: Source
    time_us: float | None
    ratio: float | None
    device: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """The `best --json` object."""
        return {**dataclasses.asdict(self), "config": dataclasses.asdict(self.config)}


# Nearest problems whose best is tried on the one asked for.
_NEAREST = 64

# Problem, device, kernel as it was named and pinned configuration, the innermost block first.
_Pin = tuple[Problem, DeviceIdentity, str, Any]
_overlays: contextvars.ContextVar[tuple[_Pin, ...]] = contextvars.ContextVar(
    "mosaic_tuner_overlays", default=()
)


@contextlib.contextmanager
def overlay(problem: Problem, device: DeviceIdentity, kernel: str, config: Any) -> Iterator[None]:
    """Inside the block, `config` answers for the problem and kernel on the device before all else."""
    token = _overlays.set(((problem, device, kernel, config), *_overlays.get()))
    try:
        yield
    finally:
        _overlays.reset(token)


def best_config(
    problem: Problem,
    *,
    device: str | Target | None = None,
    on_miss: OnMiss = "nearest",
    db: str | None = None,
    kernel: str = "",
) -> BestConfig:
    """The best known configuration of `problem` on a device; reads files only, never touches a GPU.

    The first of these that has an answer legal under today's rules and REVISION:
      1. an overlay of a surrounding `with tuner.tune(...)` block;
      2. the user's database;
      3. the records shipped with this package for that device;
      4. on_miss="nearest" or "predict": the nearest recorded problem of the same device, types and
         layouts whose best is legal here; told in `source`, and warned of once;
      5. on_miss="predict": the prior's first choice, `predicted`.

    device: a device name or a Target; None asks an already initialised JAX backend, then NVML.

    Raises:
      ConfigNotFoundError: nothing answers; the message names the key and the nearest ones.
      UnsupportedError, NoLegalConfigError: no kernel runs the problem there. UsageError: no device.
    """
    if on_miss not in ("nearest", "predict", "error"):
        raise UsageError(f"on_miss={on_miss!r} is unknown", fix="choose from nearest, predict, error")
    target = resolve_target(device)
    identity = DeviceIdentity.from_target(target)
    for pinned_problem, pinned_device, pinned_kernel, config in _overlays.get():
        if (pinned_problem, pinned_kernel) == (problem, kernel) and pinned_device.matches(identity):
            return BestConfig(
                config, "overlay", None, None, target.device_kind, "pinned by the surrounding block"
            )
    url = db or default_url()
    key, stamp = (problem, target, on_miss, url, kernel), _stamp(url)
    with _lock:
        known = _answers.get(key)
        if known is not None and stamp is not None and known[0] == stamp:
            return known[1]
        answer = _search_layers(problem, target, identity, on_miss, url, kernel)
        _answers[key] = stamp, answer
    return answer


_answers: dict[Any, tuple[Any, BestConfig]] = {}
_lock = threading.Lock()


def _stamp(url: str) -> tuple[Any, ...] | None:
    """Changes whenever a database file does, so that answers in memory are never stale; None for a server."""
    address = parsed(url)
    if address.host is not None:
        return None
    path = address.database or ""
    stamps: list[tuple[int, int]] = []
    for name in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            status = Path(name).stat()
            stamps.append((status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def _search_layers(
    problem: Problem, target: Target, identity: DeviceIdentity, on_miss: OnMiss, url: str, kernel: str
) -> BestConfig:
    family = family_for(problem, target, kernel)
    layers: dict[Source, list[Best]] = {
        "measured": _recorded(url, family, identity),
        "shipped": _shipped(target, family, identity),
    }
    refused: list[str] = []
    for source, bests in layers.items():
        exact = [b for b in bests if b.problem == problem]
        for best in sorted(exact, key=lambda b: (b.rung == "final", b.utc), reverse=True):
            if (config := _servable(best, family, problem, target, refused)) is not None:
                return _answer(config, best, source, target, f"recorded {best.utc[:10]} by {best.method}")
    near = nearest(problem, [b for bests in layers.values() for b in bests], _NEAREST)
    for distance, best in near if on_miss != "error" else ():
        if (config := _servable(best, family, problem, target, refused)) is not None:
            why = f"nearest recorded problem {best.problem}, distance {distance:.2f} in log2 sizes"
            _warn_once(f"no record of {problem} on {target.device_kind}: using the {why}")
            return _answer(config, best, "nearest", target, why)
    space = LegalSpace(family, problem, target)
    space.require_any()
    if on_miss == "predict":
        return _predicted(space, target)
    told = ", ".join(str(best.problem) for _, best in near[:3]) or "none of this kind"
    raise ConfigNotFoundError(
        f"no record of {problem} for {family.name} on {target.device_kind} ({target.sm_count} SMs)"
        + "".join(f"; {reason}" for reason in refused[:2])
        + f"; nearest recorded: {told}",
        fix=f"run tuner sweep {problem}, or ask with on_miss=predict",
    )


def _recorded(url: str, family: KernelFamily, identity: DeviceIdentity) -> list[Best]:
    try:
        with Store.open(url, create=False, read_only=True) as store:
            return [b for b in store.bests(family=family.name) if b.device.matches(identity)]
    except NoDatabaseError:
        return []


def _shipped(target: Target, family: KernelFamily, identity: DeviceIdentity) -> list[Best]:
    return [b for b in shipped(target.device_kind) if b.family == family.name and b.device.matches(identity)]


def _servable(
    best: Best, family: KernelFamily, problem: Problem, target: Target, refused: list[str]
) -> Any | None:
    """The configuration of a record, unless its REVISION is out or it is not legal here today."""
    if best.revision != family.revision:
        refused.append(f"a record has REVISION {best.revision}, the kernel is at {family.revision}")
        return None
    try:
        config = family.config(best.config)
    except UsageError as error:
        refused.append(f"BAD_RECORD {error}")
        return None
    broken = violations(family.rules, family.config_columns(problem, target, config))
    if broken:
        refused.append(f"a recorded configuration is not legal here: {broken[0].rule}, {broken[0].message}")
        return None
    return config


def _answer(config: Any, best: Best, source: Source, target: Target, why: str) -> BestConfig:
    told: Source = "imported" if source == "measured" and best.source == "imported" else source
    return BestConfig(config, told, best.time_us, best.ratio, target.device_kind, why)


def _predicted(space: LegalSpace, target: Target) -> BestConfig:
    from .prediction import predicted_best

    best = predicted_best(space)
    return BestConfig(
        space.config(best),
        "predicted",
        None,
        None,
        target.device_kind,
        "the prior's first choice; not measured",
    )


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, skip_file_prefixes=_OURS)


_warned: set[str] = set()
# Warnings point at the caller: our own files, links followed or not, are skipped.
_OURS = tuple(dict.fromkeys(str(Path(f).parent) for f in (__file__, Path(__file__).resolve())))


def resolve_target(device: str | Target | None) -> Target:
    """A device's row: by name; else an initialised JAX backend's default GPU; else NVML's first GPU.

    Raises:
      UsageError: an unknown name, or no device to be found.
    """
    if isinstance(device, Target):
        return device
    if device is not None:
        return _named_target(device)
    if (target := _jax_target()) is not None:
        return target
    from .device import gpus

    try:
        return gpus()[0].target
    except Exception as error:
        raise UsageError(
            "no GPU to ask about", fix='name one: device="NVIDIA H200" (--device, or --arch)'
        ) from error


def _named_target(name: str) -> Target:
    """A known device by name; a device at hand wins over the table, for its own SM count and limits."""
    from .device import gpus

    with contextlib.suppress(Exception):
        for gpu in gpus():
            if gpu.target.device_kind.lower() == name.lower():
                return gpu.target
    return device_target(name)


def _jax_target() -> Target | None:
    """The default device of an initialised JAX backend, if it is an NVIDIA GPU; initialises nothing."""
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    if jax is None or bridge is None or not bridge.backends_are_initialized():
        return None
    device = jax.config.jax_default_device or jax.local_devices()[0]
    if getattr(device, "platform", "") != "gpu" or not hasattr(device, "compute_capability"):
        return None
    arch = f"sm_{device.compute_capability.replace('.', '')}"
    row = DEVICES.get(device.device_kind) or reference_target(arch)
    return dataclasses.replace(
        row,
        device_kind=device.device_kind,
        sm_count=device.core_count,
        smem_optin_bytes=getattr(device, "shared_memory_per_block_optin", row.smem_optin_bytes),
        reference=False,
    )
