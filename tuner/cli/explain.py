"""`tuner explain`: every rule a configuration breaks, with what it has and needs, and the nearest repair."""

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


@click.command("explain", short_help="Say why a configuration is legal or not.")
@kernel_arguments
@target_options
@click.option("--config", "config_fields", required=True, metavar="name=value,...", help="The configuration.")
@json_option
def command(
    kernel: str,
    fields: tuple[str, ...],
    arch: str | None,
    device: str | None,
    config_fields: str,
    as_json: bool,
) -> int:
    """Say why a configuration is legal or not; fields left out take their defaults. Exit 1 if illegal.

    \b
    tuner explain matmul m=4096 n=8192 k=4096 dtype=bfloat16 --arch sm_90 \\
        --config tile_m=192,max_concurrent_steps=9
    """
    from tuner.search_spaces.family import family_for
    from tuner.search_spaces.space import LegalSpace

    problem, target = problem_from(kernel, fields), target_from(arch, device)
    family = family_for(problem, target, kernel)
    config = family.parse_config(config_fields)
    explanation = LegalSpace(family, problem, target).explain(config)
    if as_json:
        print_json(explanation.to_dict())
        return 0 if explanation.legal else 1
    verdict = "legal" if explanation.legal else "illegal"
    click.echo(f"{config_text(config)}\nis {verdict} for {problem} on {target.device_kind}")
    for violation in explanation.violations:
        click.echo(f"  {violation.rule}: {violation.message}")
    for name, value in explanation.derived.items():
        click.echo(f"  {name} = {value}")
    if explanation.legal and not explanation.canonical:
        click.echo(f"it generates the same program as {config_text(explanation.repair)}")
    elif explanation.repair is not None:
        click.echo(f"nearest legal: {config_text(explanation.repair)}")
    elif not explanation.legal:
        click.echo("no configuration is legal for this problem")
    return 0 if explanation.legal else 1
