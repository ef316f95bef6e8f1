"""`tuner show`: what is recorded, failures with their stage and reason."""

import click

from ._common import config_text, db_option, json_option, print_json, problem_from


@click.command("show", short_help="Show what is recorded.")
@click.argument("kernel", required=False)
@click.argument("fields", nargs=-1, metavar="key=value...")
@click.option("--failed", is_flag=True, help="Only configurations that failed, with stage and reason.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Rows of a table.")
@db_option
@json_option
def command(
    kernel: str | None, fields: tuple[str, ...], failed: bool, limit: int, db: str | None, as_json: bool
) -> int:
    """Without a problem, the best of every problem; with one, its records, fastest first, then failures.

    \b
    tuner show
    tuner show matmul m=4096 n=8192 k=4096 dtype=bfloat16 --failed
    """
    from tuner.results.store import Store

    if kernel is None:
        with Store.open(db, create=False, read_only=True) as store:
            bests = store.bests()
        if as_json:
            print_json({"bests": [b.to_dict() for b in bests]})
        for best in () if as_json else bests:
            ratio = "" if best.ratio is None else f"  {best.ratio:.3f}"
            click.echo(
                f"{best.time_us:>12.2f} us{ratio}  {best.problem}  {best.device.device_kind}  {best.rung}"
            )
        return 0
    problem = problem_from(kernel, fields)
    with Store.open(db, create=False, read_only=True) as store:
        records = store.measurements(problem=problem)
    if failed:
        records = [r for r in records if r.failed]
    records.sort(key=lambda r: (r.median_us is None, r.median_us or 0.0))
    if as_json:
        print_json({"records": [r.to_dict() for r in records]})
        return 0
    for record in records[:limit]:
        if record.median_us is not None:
            ratio = "" if record.ratio is None else f"{record.ratio:.3f}"
            click.echo(f"{record.median_us:>12.2f} us {ratio:>6}  {config_text(record.config)}")
        else:
            told = f"{record.failed_stage}: {record.reason}" if record.failed else ""
            click.echo(f"{record.rung:>15} {'':>6}  {config_text(record.config)}  {told}")
    if len(records) > limit:
        click.echo(f"{len(records) - limit} more; raise --limit", err=True)
    return 0
