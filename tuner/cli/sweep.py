"""`tuner sweep`: search the legal configurations of a problem, and record everything."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._common import db_option, json_option, print_json, problem_from, target_from
from ._duration import DURATION

if TYPE_CHECKING:
    from tuner.options import Options
    from tuner.search_spaces.problem import Problem
    from tuner.sweep import Outcome


@click.command("sweep", short_help="Search the legal configurations of a problem on a GPU.")
@click.argument("kernel", required=False)
@click.argument("fields", nargs=-1, metavar="key=value...")
@click.option(
    "--problems", type=click.Path(exists=True, dir_okay=False), help="A TOML file of [[problem]] tables."
)
@click.option(
    "--arch", metavar="ARCH", help="With --deviceless, what to compile for; else what the GPU must be."
)
@click.option("--device", metavar="NAME", help="With --deviceless, the known device to compile for.")
@click.option("--budget", type=DURATION, help="Time for the whole sweep: 90s, 2m, 1h.")
@click.option(
    "--trials", type=click.IntRange(min=1), help="Configurations to time (deviceless: compile) in this run."
)
@click.option(
    "--effort",
    type=click.Choice(["quick", "normal", "full"]),
    default="normal",
    show_default=True,
    help="Without --budget and --trials: 30 s, 2 min or 10 min; also the rounds of the final.",
)
@click.option("--fresh", is_flag=True, help="Start from nothing instead of the records of the problem.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Fixes operands, first draws and shuffles.",
)
@click.option("--gpus", metavar="0,1", help="GPUs to use, all of one kind; the first one by default.")
@click.option("--wait", is_flag=True, help="Wait for a GPU that another sweep holds.")
@click.option(
    "--run-timeout", type=DURATION, default="10s", show_default=True, help="Longest a kernel may run."
)
@click.option("--deviceless", is_flag=True, help="Compile and rank without a GPU; nothing is timed.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True), help="Save the closing display as SVG."
)
@db_option
@json_option
def command(
    kernel: str | None,
    fields: tuple[str, ...],
    problems: str | None,
    arch: str | None,
    device: str | None,
    budget: float | None,
    trials: int | None,
    effort: str,
    fresh: bool,
    seed: int,
    gpus: str | None,
    wait: bool,
    run_timeout: float,
    deviceless: bool,
    svg: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Search the legal configurations of a problem, time them, and hold a paired final of the best.

    \b
    tuner sweep matmul m=4096 n=8192 k=4096 dtype=bfloat16 --budget 120s
    tuner sweep copy m=32768 n=16384 dtype=float32 --trials 200
    tuner sweep matmul m=4096 n=8192 k=4096 dtype=bfloat16 --deviceless --arch sm_90
    """
    from tuner.options import Options

    wanted = _problems(kernel, fields, problems)
    options = Options(
        budget_s=budget,
        trials=trials,
        effort=effort,
        fresh=fresh,
        seed=seed,
        wait=wait,
        run_timeout_s=run_timeout,
    )
    runner = _Runner(options, db, arch, device, gpus, deviceless=deviceless, svg=svg, as_json=as_json)
    if problems is None:
        answer = runner.run(*wanted[0])
        if as_json:
            print_json(answer)
        return 0
    answers, codes = zip(*(runner.run_one_of_many(name, problem) for name, problem in wanted), strict=True)
    if as_json:
        print_json({"sweeps": answers})
    return int(max(codes))


def _problems(kernel: str | None, fields: tuple[str, ...], file: str | None) -> list[tuple[str, "Problem"]]:
    from tuner.search_spaces.errors import UsageError

    if (kernel is None) == (file is None):
        raise UsageError("give either KERNEL key=value... or --problems FILE", fix="see tuner sweep --help")
    if kernel is not None:
        return [(kernel, problem_from(kernel, fields))]
    from tuner.suites import read_suite

    assert file is not None
    return [(entry.kernel, entry.problem) for entry in read_suite(file)]


class _Runner:
    """Runs one sweep after another with the same options."""

    def __init__(
        self,
        options: "Options",
        db: str | None,
        arch: str | None,
        device: str | None,
        gpus: str | None,
        *,
        deviceless: bool,
        svg: str | None,
        as_json: bool,
    ) -> None:
        from rich.console import Console

        from tuner.search_spaces.errors import UsageError

        if svg and not Path(svg).parent.is_dir():
            raise UsageError(f"--svg {svg} is in no folder that exists", fix="make the folder first")
        self._options, self._db, self._svg, self._as_json = options, db, svg, as_json
        self._deviceless = deviceless
        if deviceless:
            self._target = target_from(arch, device)
        else:
            self._gpus = _usable_gpus(gpus, arch, device)
        self._console = Console(stderr=True)

    def run(self, kernel: str, problem: "Problem") -> dict[str, Any]:
        """One sweep: its display, its summary, and the object --json prints."""
        from tuner.results.database import default_url, redacted
        from tuner.results.store import Store
        from tuner.sweep import run_deviceless, run_sweep

        from ._display import Display, summary

        display = Display(self._console, self._options)
        database = redacted(self._db or default_url())
        try:
            with Store.open(self._db) as store:
                if self._deviceless:
                    outcome = run_deviceless(
                        problem, self._target, store, self._options, kernel=kernel, listener=display.update
                    )
                else:
                    outcome = run_sweep(
                        problem, self._gpus, store, self._options, kernel=kernel, listener=display.update
                    )
        finally:
            display.close()
        shown = summary(outcome, database, notes=self._console.is_terminal)
        if not self._as_json:
            self._console.print(shown)
        if self._svg:
            _save_svg(self._svg, shown, str(problem))
        return _json(outcome, database)

    def run_one_of_many(self, kernel: str, problem: "Problem") -> tuple[dict[str, Any], int]:
        """One sweep of a list and its exit code: what is wrong with one problem does not stop the others."""
        from tuner.search_spaces.errors import DatabaseError, NoGpuError, TunerError

        try:
            return self.run(kernel, problem), 0
        except (DatabaseError, NoGpuError):
            raise
        except TunerError as error:
            if not self._as_json:
                self._console.print(f"tuner: {error}", soft_wrap=True, highlight=False)
            told = {"code": error.code, "message": error.message, "fix": error.fix}
            return {
                "problem": {"kernel": problem.kernel, **problem.to_dict()},
                "error": told,
            }, error.exit_code


def _usable_gpus(text: str | None, arch: str | None, device: str | None) -> Any:
    from tuner.device import chosen_gpus
    from tuner.search_spaces.architecture import architecture
    from tuner.search_spaces.errors import NoGpuError

    wanted = architecture(arch).name if arch else None
    asked = " ".join(device.lower().split()).removeprefix("nvidia ") if device else ""
    found = chosen_gpus(text)
    target = found[0].target
    if wanted not in (None, target.arch) or (
        asked and asked != target.device_kind.lower().removeprefix("nvidia ")
    ):
        raise NoGpuError(
            f"the GPU here is {target.device_kind} ({target.arch}), not {device or wanted}",
            fix="leave --arch and --device out, or add --deviceless",
        )
    return found


def _save_svg(path: str, shown: Any, title: str) -> None:
    import io

    from rich.console import Console

    from tuner.search_spaces.errors import TunerError

    console = Console(record=True, width=150, file=io.StringIO())
    console.print(shown)
    drawn = console.export_svg(title=f"tuner sweep {title}")
    # A picture of a sweep asks nothing of the network: the reader's own monospace font will do.
    try:
        Path(path).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))
    except OSError as error:
        raise TunerError(f"{path} cannot be written: {error.strerror}", fix="the records are kept") from error


def _json(outcome: "Outcome", database: str) -> dict[str, Any]:
    import dataclasses

    progress, final = outcome.progress, outcome.final
    best, record, time_us = outcome.ranked[0]
    answer: dict[str, Any] = {
        "config": dataclasses.asdict(best),
        "time_us": None if outcome.predicted else time_us,
        "predicted_us": time_us if outcome.predicted else None,
        "ratio": record.ratio,
    }
    ties: list[Any] = []
    if final is not None:
        winner = final.members[final.winner]
        answer |= {"config": winner.config, "time_us": winner.median_us, "ratio": winner.ratio}
        ties = [final.members[i].config for i in final.ties]
    return {
        "problem": {"kernel": progress.problem.kernel, **progress.problem.to_dict()},
        "family": progress.family,
        "target": progress.target.to_dict(),
        "counts": {
            "legal": progress.legal,
            "timed": progress.timed,
            "compiled": progress.compiled,
            "failed": progress.failed,
            "skipped": progress.skipped,
        },
        "best": answer,
        "ties": ties,
        "final": None if final is None else final.to_dict(),
        "seconds": outcome.seconds,
        "configs_per_s": progress.configs_per_s,
        "predicted": outcome.predicted,
        "notes": list(progress.notes),
        "database": database,
    }
