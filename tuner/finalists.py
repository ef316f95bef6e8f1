"""Runs the paired final on a GPU: picks its members, times them in shuffled rounds, stores the verdict."""

import dataclasses
from typing import Any

from tuner.results.records import Final, FinalMember
from tuner.search_spaces.errors import MeasurementError

from .child import ChildDied, ChildTimeout
from .final import paired_ratio, ranking
from .gpu import GpuDriver
from .recorder import Recorder, least_possible_ns
from .search import Search

FINALISTS = 8
# Runs of each member in a round; their median counts.
RUNS_PER_ROUND = 3
_BASELINE = "baseline"
_DEFAULT = "default"


def run_final(
    recorder: Recorder, search: Search, farm: Any, driver: GpuDriver, *, rounds: int
) -> Final | None:
    """The best few, the family's default and the baseline, side by side.

    None when nothing was timed, or when a member broke the GPU process twice: the records stand.
    """
    configs = _members(recorder)
    if not configs:
        return None
    programs = _programs(recorder, search, farm, configs)
    answer: dict[str, Any] | None = None
    for _ in range(2):
        try:
            answer = driver.final(programs, rounds=rounds, runs=RUNS_PER_ROUND, seed=recorder.seed)
            break
        except (ChildDied, ChildTimeout, MeasurementError) as error:
            driver.close_child()
            told = f"the final did not finish: {error or 'no answer in time'}"
    if answer is None:
        recorder.progress.notes.append(told)
        return None
    samples = _possible(recorder, answer["samples_ns"])
    if len(samples) < 2 or _BASELINE not in samples:
        recorder.progress.notes.append("the final's times were impossible")
        return None
    final = _verdict(recorder, configs, samples)
    recorder.store.add_final(final)
    return final


def _members(recorder: Recorder) -> dict[str, Any]:
    """The best few and the default, where it was timed and so verified."""
    ranked = [config for config, _ in recorder.ranked(recorder.progress.method)]
    members = {str(place): config for place, config in enumerate(ranked[:FINALISTS], start=1)}
    if recorder.default in ranked:
        members = {name: config for name, config in members.items() if config != recorder.default}
        members[_DEFAULT] = recorder.default
    return members


def _programs(recorder: Recorder, search: Search, farm: Any, configs: dict[str, Any]) -> dict[str, bytes]:
    """Each member's program, compiled again where it is no longer in memory."""
    missing = {
        name: farm.submit(search.compile_function, search.task(config))
        for name, config in configs.items()
        if config not in search.programs
    }
    programs = {name: search.programs[config] for name, config in configs.items() if name not in missing}
    for name, future in missing.items():
        _, program = future.result()
        if program:
            programs[name] = program
    return {name: programs[name] for name in configs if name in programs}


def _possible(recorder: Recorder, samples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """The members all of whose samples a device could have taken."""
    least_ns = least_possible_ns(recorder.problem, recorder.target)
    return {name: rounds for name, rounds in samples.items() if min(map(min, rounds)) >= least_ns}


def _verdict(recorder: Recorder, configs: dict[str, Any], samples: dict[str, list[list[int]]]) -> Final:
    fields = list(recorder.space.axes)

    def tie_break(name: str) -> tuple[Any, ...]:
        # Fewer bytes of shared memory, then the order of the axes' own values.
        config = configs[name]
        places = (recorder.space.axes[f].values.index(getattr(config, f)) for f in fields)
        return recorder.smem_bytes(config) or 0, *places

    own = {name: rounds for name, rounds in samples.items() if name != _BASELINE}
    winner, ties = ranking(own, {name: tie_break(name) for name in own})
    members = [
        _member(name, configs.get(name), rounds, samples[_BASELINE], recorder.seed)
        for name, rounds in samples.items()
    ]
    names = list(samples)
    return Final(
        **recorder.common(),
        method=recorder.progress.method,
        members=tuple(members),
        rounds=len(samples[_BASELINE]),
        ties=tuple(names.index(name) for name in ties),
        winner=names.index(winner),
    )


def _member(
    name: str, config: Any, rounds: list[list[int]], baseline: list[list[int]], seed: int
) -> FinalMember:
    ratio = paired_ratio(rounds, baseline, seed=seed)
    role = name if name in (_BASELINE, _DEFAULT) else "candidate"
    return FinalMember(
        role=role,
        name=name,
        config=None if config is None else dataclasses.asdict(config),
        samples_ns=tuple(tuple(r) for r in rounds),
        ratio=ratio.median,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
    )
