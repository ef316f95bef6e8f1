"""Turns answers of workers and GPU processes into records of one problem, stored as they happen."""

import contextlib
import dataclasses
import functools
import hashlib
import platform
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.results.records import DeviceIdentity, Measurement, median_us, utc_now, valid_samples_ns
from tuner.results.store import Store
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.errors import DatabaseError
from tuner.search_spaces.family import KernelFamily
from tuner.search_spaces.problem import DTYPE_BITS, Problem
from tuner.search_spaces.space import LegalSpace

from .options import Progress

# A measured rate may exceed the rated peak by this before it is impossible.
_PEAK_SLACK = 1.05
_LONGEST_SAMPLE_NS = 60 * 10**9
# Failures that say nothing about the configuration: no memory, or a kernel that cannot be imported.
_RETRIED = ("OOM", "UsageError", "ImportError", "ModuleNotFoundError")


class Recorder:
    """The records of one problem, family and device: those in the store and those of this run."""

    def __init__(
        self, store: Store, space: LegalSpace, progress: Progress, *, seed: int, fresh: bool
    ) -> None:
        self.store, self.space, self.progress = store, space, progress
        self.family, self.problem, self.target = space.family, space.problem, space.target
        self.device = DeviceIdentity.from_target(self.target)
        self.run_id = uuid.uuid4().hex
        self.versions: dict[str, str] = {}
        self.unsaved: list[Measurement] = []
        self._pending: tuple[Any, Measurement, bool] | None = None
        self.seed = seed
        self._known: list[tuple[Any, Measurement]] = []
        if not fresh:
            self._recall()

    def _recall(self) -> None:
        for record in self.store.measurements(
            problem=self.problem, family=self.family.name, device=self.device
        ):
            if record.revision != self.family.revision or record.source != "measured":
                continue
            if (config := self.legal_config(record.config)) is not None:
                self._known.append((config, record))
        self.progress.skipped = len(self.settled())

    @functools.cached_property
    def default(self) -> Any:
        """The family's default configuration for the problem."""
        return self.family.default_config(self.problem, self.target)

    def legal_config(self, fields: Mapping[str, Any]) -> Any | None:
        """The configuration of a record, or None when it is not legal today."""
        try:
            config = self.family.config(fields)
        except ValueError:
            return None
        return config if config in self.space else None

    def settled(self) -> dict[Any, float | None]:
        """Configurations that need no further trial: median microseconds, or None for a failure."""
        known: dict[Any, float | None] = {}
        # Where nothing worked, something else was broken.
        worked = {record.run_id for _, record in self._known if not record.failed_stage}
        for config, record in self._known:
            if record.median_us is not None:
                known[config] = record.median_us
            elif record.failed_stage and record.run_id in worked and not record.reason.startswith(_RETRIED):
                known[config] = None
        return known

    def compiled(self) -> list[tuple[Any, Measurement]]:
        """The newest record of each configuration that went as far as `compiled` and no further."""
        return list({c: (c, r) for c, r in self._known if r.rung == "compiled" and not r.failed}.values())

    def ranked(self, method: str) -> list[tuple[Any, Measurement]]:
        """The newest record of each configuration by `method`, where it is a time; fastest first."""
        newest = {c: r for c, r in self._known if r.method == method}
        timed = [(c, r) for c, r in newest.items() if r.median_us is not None]
        return sorted(timed, key=lambda item: item[1].median_us or 0.0)

    def record(
        self, config: Any, compiled: Mapping[str, Any], answer: Mapping[str, Any], *, repeat: bool = False
    ) -> Measurement:
        """Stores how far one configuration came, the moment it is known.

        compiled: the worker's answer. answer: the GPU process's, or the worker's again. repeat: it was
        counted before.

        Raises:
          DatabaseError: the store did not take it; it is in `unsaved`.
        """
        least_ns = least_possible_ns(self.problem, self.target)
        samples, dropped = valid_samples_ns(
            answer.get("samples_ns"), least_ns=least_ns, timeout_ns=_LONGEST_SAMPLE_NS
        )
        rung, stage, reason = answer["rung"], answer["stage"], answer["reason"]
        if rung == "timed" and median_us(samples, dropped) is None:
            told = (
                f"IMPOSSIBLE_TIME {dropped} of {dropped + len(samples)} samples, e.g. below {least_ns:.0f} ns"
            )
            rung, stage, reason, samples = "verified", "time", told, ()
        measurement = Measurement(
            **self.common(),
            config=dataclasses.asdict(config),
            method=self.progress.method,
            rung=rung,
            failed_stage=stage,
            reason=reason,
            samples_ns=tuple(samples),
            invalid_samples=dropped,
            baseline_us=self.progress.baseline_us,
            ratio=self._ratio(samples),
            max_error=answer.get("max_error"),
            registers=compiled.get("registers"),
            spill_bytes=compiled.get("spill_bytes"),
            smem_bytes=self.smem_bytes(config),
            sm_clock_mhz=answer.get("sm_clock_mhz"),
            power_w=answer.get("power_w"),
            throttle_reasons=answer.get("throttle_reasons"),
            lower_s=compiled.get("lower_s"),
            compile_s=compiled.get("compile_s"),
        )
        self._pending = config, measurement, repeat
        self.finish()
        return measurement

    def finish(self) -> bool:
        """Stores a measurement whose storing was interrupted (twice keeps one); False if there is none."""
        if self._pending is None:
            return False
        config, measurement, repeat = self._pending
        self._store(measurement)
        self._known.append((config, measurement))
        if repeat:
            # It may have taken back the best time.
            self._adopt_best()
        else:
            self._count(config, measurement)
        self._pending = None
        return True

    def _store(self, measurement: Measurement) -> None:
        try:
            self.store.add(measurement)
        except DatabaseError:
            self.unsaved.append(measurement)
            self._pending = None
            raise

    def _adopt_best(self) -> None:
        for config, record in self.ranked(self.progress.method)[:1]:
            self.progress.best_config, self.progress.best_us = config, record.median_us

    def begin(self, method: str, baseline_us: float, algorithm: str) -> None:
        """What a GPU process told before its first answer; the best known by that method counts from now."""
        self.progress.method, self.progress.baseline_us = method, baseline_us
        self.progress.baseline_algorithm = algorithm
        self._adopt_best()

    def common(self) -> dict[str, Any]:
        """The fields every record of this run shares, with the time now."""
        return {
            "problem": self.problem,
            "family": self.family.name,
            "revision": self.family.revision,
            "rules": rules_fingerprint(self.family),
            "device": self.device,
            "run_id": self.run_id,
            "utc": utc_now(),
            "versions": self.versions,
            "host": platform.node(),
            "commit": checkout_commit(),
            "seed": self.seed,
        }

    def smem_bytes(self, config: Any) -> int | None:
        """Shared memory of a configuration; None where the family does not derive it."""
        columns = self.family.config_columns(self.problem, self.target, config)
        return int(columns["smem_bytes"]) if "smem_bytes" in columns else None

    def _ratio(self, samples: Any) -> float | None:
        time_us = median_us(samples)
        baseline = self.progress.baseline_us
        return baseline / time_us if baseline and time_us else None

    def _count(self, config: Any, record: Measurement) -> None:
        progress = self.progress
        if record.failed_stage:
            progress.failed += 1
            progress.reasons[f"{record.failed_stage}: {record.reason[:100]}"] += 1
        elif record.median_us is not None:
            progress.timed += 1
            if progress.best_us is None or record.median_us < progress.best_us:
                progress.best_us, progress.best_config = record.median_us, config


def rules_fingerprint(family: KernelFamily) -> str:
    """A short text that changes when the set of rules does."""
    return hashlib.sha256(" ".join(sorted(r.id for r in family.rules)).encode()).hexdigest()[:12]


@functools.cache
def checkout_commit() -> str:
    """The commit of the checkout this runs from, or "" when installed."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "HEAD"]
        head = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=5, check=False)
        return head.stdout.strip() if head.returncode == 0 else ""
    return ""


def least_possible_ns(problem: Problem, target: Target) -> float:
    """What no run can beat: the peak rate at the maximum clock, and DRAM for bytes L2 cannot hold."""
    # Tensor cores take 8-bit types twice as fast as 16-bit ones.
    narrow = max(1, 16 // DTYPE_BITS[getattr(problem, "dtype", "bfloat16")])
    peak = target.sm_count * target.flops_per_clock_per_sm * narrow * target.max_sm_clock_mhz * 1e6
    math_s = problem.flops / (peak * _PEAK_SLACK) if peak else 0.0
    beyond_l2_bytes = max(0, problem.bytes - 2 * target.l2_bytes)
    dram_s = beyond_l2_bytes / (target.dram_bytes_per_s * _PEAK_SLACK) if target.dram_bytes_per_s else 0.0
    return max(1.0, math_s * 1e9, dram_s * 1e9)
