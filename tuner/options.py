"""How to sweep, and what a display is told while it runs."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tuner.search_spaces.architecture import Target
from tuner.search_spaces.problem import Problem

from .compiling import compile_program
from .farm import COMPILE_TIMEOUT_S
from .gpu import FIRST_RUN_TIMEOUT_S, SESSION


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """What `--effort` stands for: seconds for the whole sweep, and rounds of its final."""

    budget_s: float
    final_rounds: int


EFFORTS = {"quick": Effort(30.0, 12), "normal": Effort(120.0, 20), "full": Effort(600.0, 40)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to sweep.

    budget_s: seconds the whole sweep may take. trials: configurations timed (deviceless: compiled)
    in this run. With neither, the effort's budget holds; with trials alone, no budget does.
    fresh: start from nothing instead of the records of the problem.
    session, compile_function: what runs in the GPU process and in the workers; tests replace them.
    """

    budget_s: float | None = None
    trials: int | None = None
    effort: str = "normal"
    fresh: bool = False
    seed: int = 0
    wait: bool = False
    run_timeout_s: float = FIRST_RUN_TIMEOUT_S
    compile_timeout_s: float = COMPILE_TIMEOUT_S
    workers: int | None = None
    session: str = SESSION
    compile_function: Callable[[Any], tuple[dict[str, Any], bytes]] = compile_program

    @property
    def whole_s(self) -> float | None:
        """Seconds the whole sweep may take; None when only trials bound it."""
        if self.budget_s is not None:
            return self.budget_s
        return None if self.trials is not None else EFFORTS[self.effort].budget_s

    @property
    def final_rounds(self) -> int:
        """Shuffled rounds of the final."""
        return EFFORTS[self.effort].final_rounds


@dataclasses.dataclass(slots=True)
class Progress:
    """Where a sweep stands; updated in place, told to the listener after every event."""

    problem: Problem
    family: str
    target: Target
    legal: int
    phase: str = "starting"
    compiled: int = 0
    timed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    best_us: float | None = None
    best_config: Any = None
    baseline_us: float | None = None
    baseline_algorithm: str = ""
    method: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)
    started: float = dataclasses.field(default_factory=time.monotonic)
    search_started: float = 0.0
    search_s: float = 0.0

    @property
    def configs_per_s(self) -> float:
        """Timed configurations a second, from the first one asked for to the last answer."""
        spent = self.search_s or (time.monotonic() - self.search_started if self.search_started else 0.0)
        return (self.timed or self.compiled) / spent if spent else 0.0

    @property
    def ratio(self) -> float | None:
        """Baseline time over the best time so far, not paired."""
        return self.baseline_us / self.best_us if self.baseline_us and self.best_us else None


Listener = Callable[[Progress], None]
