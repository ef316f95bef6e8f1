"""`tuner best`: the best known configuration of a problem on a device."""

import warnings

import click

from ._common import (
    config_text,
    db_option,
    json_option,
    kernel_arguments,
    print_json,
    problem_from,
    target_from,
    target_options,
)


@click.command("best", short_help="Print the best known configuration of a problem.")
@kernel_arguments
@target_options
@click.option(
    "--on-miss",
    type=click.Choice(["nearest", "predict", "error"]),
    default="error",
    show_default=True,
    help="What to answer when nothing is recorded.",
)
@db_option
@json_option
def command(
    kernel: str,
    fields: tuple[str, ...],
    arch: str | None,
    device: str | None,
    on_miss: str,
    db: str | None,
    as_json: bool,
) -> int:
    """Print the best known configuration of a problem on a device. Exit 3 if none is known.

    \b
    tuner best matmul m=4096 n=8192 k=4096 dtype=bfloat16 --device "NVIDIA H200"
    """
    from tuner.lookup import best_config

    problem, target = problem_from(kernel, fields), target_from(arch, device)
    with warnings.catch_warnings():
        # What the warning says is printed below.
        warnings.simplefilter("ignore")
        answer = best_config(problem, device=target, on_miss=on_miss, db=db, kernel=kernel)  # type: ignore[arg-type]
    if as_json:
        print_json(answer.to_dict())
        return 0
    click.echo(config_text(answer.config))
    time = "" if answer.time_us is None else f", {answer.time_us:.2f} us"
    ratio = "" if answer.ratio is None else f", {answer.ratio:.3f} x the baseline's speed"
    click.echo(f"{answer.source} on {answer.device}{time}{ratio}: {answer.why}", err=True)
    return 0
