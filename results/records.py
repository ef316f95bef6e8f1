"""Records: a measurement, a paired final, and the best known configuration of a problem."""

import dataclasses
import datetime as dt
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Self

from tuner.search_spaces.architecture import Target
from tuner.search_spaces.family import Value
from tuner.search_spaces.problem import Problem

from .errors import BadRecordError
from .plain import Record, to_json

__all__ = [
    "RUNGS",
    "Best",
    "DeviceIdentity",
    "Final",
    "FinalMember",
    "Measurement",
    "median_us",
    "to_json",
    "utc_now",
    "valid_samples_ns",
]

# How far a configuration got, in order.
RUNGS = ("legal", "lowered", "compiled", "ran", "verified", "timed", "final")

_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def utc_now() -> str:
    """The time as records write it: ISO 8601, microseconds, Z; the text sorts as the time does."""
    now = dt.datetime.now(dt.UTC)
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


def valid_samples_ns(
    samples: Iterable[object] | None, *, least_ns: float = 0, timeout_ns: float = math.inf
) -> tuple[tuple[int, ...], int]:
    """The possible ones of `samples` (nanoseconds), in order, and how many were dropped.

    Dropped are what is no finite number, what is not above 0, what is below `least_ns` (faster than
    the device can be) and what is above `timeout_ns`. None, a timer's word for nothing seen, is no sample.
    """
    given = () if samples is None else samples
    numbers = [float(sample) if isinstance(sample, Real) else math.nan for sample in given]
    kept = tuple(
        round(number)
        for number in numbers
        if math.isfinite(number) and number > 0 and least_ns <= number <= timeout_ns
    )
    return kept, len(numbers) - len(kept)


def median_us(samples_ns: Iterable[object] | None, invalid_samples: int = 0) -> float | None:
    """The median of the valid samples in microseconds.

    None when fewer than half of them are valid, `invalid_samples` more having been dropped before.
    """
    kept, dropped = valid_samples_ns(samples_ns)
    if not kept or len(kept) < dropped + invalid_samples:
        return None
    return statistics.median(kept) / 1e3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity(Record):
    """What a record was measured on; `device_kind` verbatim as the driver prints it.

    smem_optin_bytes: shared memory a block may ask for. power_limit_w: 0 where unknown.
    """

    device_kind: str
    compute_capability: str
    sm_count: int
    smem_optin_bytes: int
    power_limit_w: int = 0

    @classmethod
    def from_target(cls, target: Target) -> Self:
        """The identity of a target's device."""
        return cls(
            device_kind=target.device_kind,
            compute_capability=target.architecture.compute_capability,
            sm_count=target.sm_count,
            smem_optin_bytes=target.smem_optin_bytes,
            power_limit_w=target.power_limit_w,
        )

    @property
    def key(self) -> str:
        """One canonical text per identity."""
        return to_json(self)

    def matches(self, other: "DeviceIdentity") -> bool:
        """Whether a record of one answers for the other: all equal, or a power limit unknown."""
        known = self.power_limit_w and other.power_limit_w
        limit = self.power_limit_w if known else other.power_limit_w
        return dataclasses.replace(self, power_limit_w=limit) == other


def _check_utc(utc: str) -> None:
    if not _UTC.fullmatch(utc):
        raise BadRecordError(f"utc={utc!r} is not a time", fix="write it as 2026-01-31T12:00:00.000000Z")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Record):
    """One configuration measured once: how far it got, and how fast it was.

    rules: fingerprint of the rule set. method: how time was taken, "" when never timed; times of
    different methods are never compared. rung: one of RUNGS. failed_stage, reason: "" on success;
    the reason is a code and the first line of the message. invalid_samples: dropped as impossible.
    ratio: baseline / ours, above 1 is faster than the baseline. max_error: largest |out - reference|
    as a multiple of what is allowed. throttle_reasons: NVML's bit mask.

    Raises:
      BadRecordError: an unknown rung, or a `utc` that is not what `utc_now` writes.
    """

    problem: Problem
    family: str
    revision: int
    rules: str
    config: Mapping[str, Value]
    device: DeviceIdentity
    method: str
    run_id: str
    utc: str
    rung: str
    failed_stage: str = ""
    reason: str = ""
    samples_ns: tuple[int, ...] = ()
    invalid_samples: int = 0
    baseline_us: float | None = None
    ratio: float | None = None
    max_error: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None
    versions: Mapping[str, str]
    host: str
    commit: str
    seed: int
    source: str = "measured"
    lower_s: float | None = None
    compile_s: float | None = None

    def __post_init__(self) -> None:
        _check_utc(self.utc)
        if self.rung not in RUNGS:
            raise BadRecordError(f"rung={self.rung!r} is unknown", fix=f"choose from {', '.join(RUNGS)}")

    @property
    def median_us(self) -> float | None:
        """Median time in microseconds; None when not timed, or fewer than half the samples are valid."""
        return median_us(self.samples_ns, self.invalid_samples)

    @property
    def failed(self) -> bool:
        """Whether a stage failed."""
        return bool(self.failed_stage)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinalMember(Record):
    """One program of a final: `role` is candidate, default or baseline (which has no config).

    samples_ns: one tuple of nanoseconds a round. ratio: paired baseline / ours, with its interval.
    """

    role: str
    name: str
    config: Mapping[str, Value] | None = None
    samples_ns: tuple[tuple[int, ...], ...] = ()
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def median_us(self) -> float | None:
        """Median time over all rounds in microseconds; None without samples."""
        return median_us([sample for samples in self.samples_ns for sample in samples])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Final(Record):
    """A paired final: its members ran interleaved in shuffled rounds.

    ties: indices into `members` that cannot be told from the winner. winner: index into `members`.

    Raises:
      BadRecordError: an index outside `members`, or a `utc` that is not what `utc_now` writes.
    """

    problem: Problem
    family: str
    revision: int
    rules: str
    device: DeviceIdentity
    method: str
    run_id: str
    utc: str
    members: tuple[FinalMember, ...]
    rounds: int
    ties: tuple[int, ...]
    winner: int
    versions: Mapping[str, str]
    host: str
    commit: str
    seed: int
    source: str = "measured"

    def __post_init__(self) -> None:
        _check_utc(self.utc)
        for index in (self.winner, *self.ties):
            if not 0 <= index < len(self.members):
                raise BadRecordError(f"there is no member {index} among {len(self.members)}")

    @property
    def beats_default(self) -> bool | None:
        """Whether the winner is at least as fast as the default; None when the default was not in it."""
        won = self.members[self.winner].ratio
        defaults = [m.ratio for m in self.members if m.role == "default" and m.ratio is not None]
        return won >= defaults[0] if won is not None and defaults else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Best(Record):
    """The best known configuration of one problem, family, device and method.

    time_us: median. ratio: baseline / ours, with its interval where a final gave one. rung: "timed"
    or "final". source: measured, shipped, shared or imported. beats_default: None where no final says.
    """

    problem: Problem
    family: str
    revision: int
    rules: str
    device: DeviceIdentity
    method: str
    config: Mapping[str, Value]
    time_us: float
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rung: str
    utc: str
    versions: Mapping[str, str]
    source: str
    beats_default: bool | None = None

    def __post_init__(self) -> None:
        _check_utc(self.utc)

    @classmethod
    def of(cls, record: Measurement | Final) -> Self | None:
        """What a record claims to be best, or None when it has no configuration with a time."""
        if isinstance(record, Measurement):
            timed = RUNGS.index(record.rung) >= RUNGS.index("timed") and not record.failed
            time_us, config = record.median_us if timed else None, record.config
            told: dict[str, Any] = {"rung": "timed", "ratio": record.ratio}
        else:
            winner = record.members[record.winner]
            time_us, config = winner.median_us, winner.config or {}
            told = {name: getattr(winner, name) for name in ("ratio", "ratio_low", "ratio_high")}
            told |= {"rung": "final", "beats_default": record.beats_default}
        if time_us is None or not config:
            return None
        shared = ("problem", "family", "revision", "rules", "device", "method", "utc", "versions", "source")
        return cls(config=config, time_us=time_us, **told, **{name: getattr(record, name) for name in shared})
