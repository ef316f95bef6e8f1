"""The sweep's display: what is done, how fast, what is best so far, what failed and why."""

import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.options import Options, Progress
from tuner.sweep import Outcome

from ._common import config_text

_FAILURES_SHOWN = 4


class Display:
    """Draws a sweep on stderr while it runs; on a dumb terminal, a line now and then."""

    def __init__(self, console: Console, options: Options) -> None:
        self._console, self._options = console, options
        self._live: Live | None = None
        self._last_line = 0.0
        self._told = 0

    def update(self, progress: Progress) -> None:
        """Takes over the sweep's state; the listener of `run_sweep`."""
        if not self._console.is_terminal:
            for note in progress.notes[self._told :]:
                self._console.print(f"note: {note}", soft_wrap=True, highlight=False)
            self._told = len(progress.notes)
            if time.monotonic() - self._last_line > 10 or progress.phase in ("final", "done"):
                self._last_line = time.monotonic()
                self._console.print(_headline(progress), soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=True, refresh_per_second=8, transient=True)
            self._live.start()
        self._live.update(self._render(progress))
        if progress.phase == "done":
            self.close()

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render(self, progress: Progress) -> RenderableType:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=self._done(progress), width=40), _headline(progress))
        parts: list[RenderableType] = [bar]
        if progress.best_config is not None:
            parts.append(Text(f"best  {_spaced(progress.best_config)}", style="green"))
        parts += [
            Text(f"{count:>4} x {why}", style="red")
            for why, count in progress.reasons.most_common(_FAILURES_SHOWN)
        ]
        parts += [Text(f"note  {note}", style="yellow") for note in progress.notes]
        return Group(*parts)

    def _done(self, progress: Progress) -> float:
        shares = [progress.timed / max(1, progress.legal - progress.skipped)]
        if (whole := self._options.whole_s) is not None:
            shares.append((time.monotonic() - progress.started) / whole)
        if self._options.trials is not None:
            shares.append((progress.timed or progress.compiled) / self._options.trials)
        return min(1.0, max(shares))


def _headline(progress: Progress) -> Text:
    done = progress.timed if progress.method else progress.compiled
    what = "timed" if progress.method else "compiled"
    parts = [
        f"{progress.phase}: {done} {what} of {progress.legal:,} legal",
        f"{progress.configs_per_s:.1f}/s",
    ]
    if progress.skipped:
        parts.append(f"{progress.skipped} known")
    if progress.best_us is not None:
        parts.append(f"best {progress.best_us:.1f} us")
    if progress.ratio is not None:
        parts.append(f"{progress.ratio:.3f} x the baseline")
    parts.append(f"{progress.failed} failed")
    return Text(", ".join(parts))


def summary(outcome: Outcome, database: str, *, notes: bool = True, rows: int = 10) -> RenderableType:
    """The ranked table a sweep ends with, and a line on how it went; `notes` unless they were told before."""
    progress = outcome.progress
    parts: list[RenderableType] = [_ranking(outcome, rows)]
    if outcome.final is not None:
        parts.append(_final_table(outcome))
    parts += [Text(line) for line in _closing_lines(outcome, database)]
    parts += [
        Text(f"{count} x {why}", style="red") for why, count in progress.reasons.most_common(_FAILURES_SHOWN)
    ]
    parts += [Text(f"note: {note}", style="yellow") for note in progress.notes if notes]
    return Group(*parts)


def _ranking(outcome: Outcome, rows: int) -> Table:
    progress = outcome.progress
    kind = "predicted, not measured" if outcome.predicted else f"timed once by {progress.method}"
    table = Table(title=f"{progress.problem} on {progress.target.device_kind}: {kind}", title_justify="left")
    for name in ("", "predicted us" if outcome.predicted else "us", "ratio", "spills"):
        table.add_column(name, justify="right")
    table.add_column("configuration", overflow="fold")
    for place, (config, record, time_us) in enumerate(outcome.ranked[:rows], start=1):
        ratio = "" if record.ratio is None else f"{record.ratio:.3f}"
        spills = "" if record.spill_bytes is None else str(record.spill_bytes)
        table.add_row(str(place), f"{time_us:.1f}", ratio, spills, _spaced(config))
    return table


def _spaced(config: Any) -> str:
    """The fields with spaces between them, where a narrow column can break."""
    return config_text(config).replace(",", " ")


def _final_table(outcome: Outcome) -> Table:
    final = outcome.final
    assert final is not None
    table = Table(title=f"paired final, {final.rounds} shuffled rounds", title_justify="left")
    for name, justify in (
        ("", "left"),
        ("us", "right"),
        ("ratio", "right"),
        ("95 %", "right"),
        ("configuration", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    order = sorted(range(len(final.members)), key=lambda i: -(final.members[i].ratio or 0.0))
    for i in order:
        member = final.members[i]
        mark = "winner" if i == final.winner else "tied" if i in final.ties else ""
        role = member.role if member.role != "candidate" else ""
        told = "" if member.config is None else _spaced(member.config)
        interval = f"{member.ratio_low:.4f}-{member.ratio_high:.4f}"
        table.add_row(
            f"{mark} {role}".strip(), f"{member.median_us:.1f}", f"{member.ratio:.4f}", interval, told
        )
    return table


def _closing_lines(outcome: Outcome, database: str) -> list[str]:
    progress = outcome.progress
    what = "compiled" if outcome.predicted else "timed"
    done = progress.compiled if outcome.predicted else progress.timed
    every = ", the whole space" if outcome.complete else ""
    lines = [
        f"{done} {what} of {progress.legal:,} legal{every}, {progress.failed} failed",
        f"{progress.skipped} known before",
        f"{progress.configs_per_s:.1f} a second, {outcome.seconds:.1f} s in all",
    ]
    if progress.baseline_us is not None:
        lines.append(f"baseline {progress.baseline_us:.1f} us ({progress.baseline_algorithm})")
    lines.append(f"recorded in {database}")
    return lines
