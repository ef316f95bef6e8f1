"""`tuner space`: how many configurations are legal, what removed the others, and which they are."""

from typing import Any

import click

from ._common import (
    config_text,
    json_option,
    kernel_arguments,
    print_json,
    problem_from,
    target_from,
    target_options,
)


@click.command("space", short_help="Count or list the legal configurations of a problem.")
@kernel_arguments
@target_options
@click.option("--list", "as_list", is_flag=True, help="Print every configuration, one a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Print every configuration as CSV.")
@json_option
def command(
    kernel: str,
    fields: tuple[str, ...],
    arch: str | None,
    device: str | None,
    as_list: bool,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Count the legal configurations of a problem, and what each rule removed.

    \b
    tuner space matmul m=4096 n=8192 k=4096 dtype=bfloat16 --arch sm_90
    tuner space copy m=32768 n=16384 dtype=float32 --arch sm_90 --csv > space.csv
    """
    from tuner.search_spaces.family import family_for
    from tuner.search_spaces.space import LegalSpace

    problem, target = problem_from(kernel, fields), target_from(arch, device)
    space = LegalSpace(family_for(problem, target, kernel), problem, target)
    space.require_any()
    if as_list:
        for config in space:
            click.echo(config_text(config))
    elif as_csv:
        click.echo(",".join(space.axes))
        for config in space:
            click.echo(",".join("" if v is None else str(v) for v in _values(config)))
    elif as_json:
        print_json(
            {
                "problem": {"kernel": problem.kernel, **problem.to_dict()},
                "family": space.family.name,
                "target": target.to_dict(),
                "size": len(space),
                "raw": space.raw,
                "removed": space.removed,
            }
        )
    else:
        _print_counts(space)
    return 0


def _values(config: Any) -> tuple[Any, ...]:
    import dataclasses

    return dataclasses.astuple(config)


def _print_counts(space: Any) -> None:
    reference = f" (the reference device of {space.target.arch})" if space.target.reference else ""
    click.echo(f"{space.problem} on {space.target.device_kind}{reference}, {space.target.sm_count} SMs")
    click.echo(f"{len(space):>24,} legal configurations of {space.family.name}")
    for rule, count in sorted(space.removed.items(), key=lambda item: -item[1]):
        if count:
            click.echo(f"{count:>24,} removed by {rule}")
    click.echo(f"{space.raw:>24,} products of {len(space.axes)} axes")
