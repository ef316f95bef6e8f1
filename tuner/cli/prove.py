"""`tuner prove`: hold the rules against JAX's own lowering, and against ptxas."""

import sys
from typing import TYPE_CHECKING, Any

import click

from ._common import json_option, print_json

if TYPE_CHECKING:
    from tuner.proof.prove import Disagreement, Proof

# Legal points that ptxas is asked about.
_COMPILED = 200


@click.command("prove", short_help="Hold the rules against JAX and ptxas.")
@click.argument("arch")
@click.option("--kernel", default="", metavar="NAME", help="A kernel or a family; all that run by default.")
@click.option(
    "--samples", type=click.IntRange(min=30), default=2000, show_default=True, help="Points a family."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Fixes the points.")
@click.option(
    "--rung",
    type=click.Choice(["lowered", "compiled"]),
    help="How far points are taken; compiled (with ptxas) by default where that can be done here.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, writable=True),
    help="Where to save the points, if all holds.",
)
@json_option
def command(
    arch: str, kernel: str, samples: int, seed: int, rung: str | None, save: str | None, as_json: bool
) -> int:
    """Hold the rules against JAX and ptxas on random points. Exit 1 on any disagreement or undecided rule.

    A third of the points is legal, a third one step from a legal one, a third anywhere on a grid wider
    than the axes. JAX's lowering for ARCH is asked about each, ptxas about 200 legal ones and about every
    illegal one that JAX lowers.

    \b
    tuner prove sm_90
    tuner prove sm_100 --kernel matmul --samples 500 --rung lowered
    """
    from tuner.farm import Farm
    from tuner.proof.prove import provable, prove
    from tuner.search_spaces.architecture import reference_target

    target = reference_target(arch)
    families = provable(target, kernel)
    compiled = _COMPILED if _takes_compiled(rung) else 0
    proofs = []
    with Farm() as farm:
        for family in families:
            shown = _Bar(family.name)
            proofs.append(
                prove(family, target, farm, samples=samples, seed=seed, compiled=compiled, listener=shown)
            )
    if save and all(proof.holds for proof in proofs):
        from tuner.proof.corpus import write_corpus

        write_corpus(save, proofs)
    if as_json:
        print_json(_json(proofs))
    else:
        for proof in proofs:
            _tell(proof)
    return 0 if all(proof.holds for proof in proofs) else 1


def _takes_compiled(rung: str | None) -> bool:
    from tuner.compiling import missing_compiler
    from tuner.search_spaces.errors import UsageError

    missing = missing_compiler()
    if rung == "compiled" and missing:
        raise UsageError(f"--rung compiled needs {missing}", fix="pip install 'mosaic-tuner[deviceless]'")
    return rung != "lowered" and not missing


class _Bar:
    """Says on stderr how far a family is, where somebody looks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, done: int, of: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{self._name}: {done} of {of} points", nl=done == of, err=True)


def _tell(proof: "Proof") -> None:
    rung = "JAX and ptxas" if proof.compiled else "JAX"
    points = proof.points
    click.echo(
        f"{proof.family.name} on {proof.target.arch}, jax {_jax_version()}: {points['legal']} legal and "
        f"{points['illegal']} illegal points held against {rung} ({points['compiled']} compiled)"
    )
    click.echo(f"  {'rule':<30} {'decided alone':>13} {'let pass':>8}  noticed")
    for rule in proof.family.rules:
        count = proof.by_rule[rule.id]
        noticed = rule.noticed if rule.kind == "illegal" else "canonical"
        told = noticed if rule.decides(proof.target.arch) else "implied"
        because = f"  {rule.source}" if count.absorbed else ""
        click.echo(f"  {rule.id:<30} {count.alone:>13} {count.absorbed:>8}  {told:<9}{because}")
    for name in proof.undecided:
        click.echo(f"  UNDECIDED {name}: no point is decided by it alone; raise --samples")
    for found in proof.disagreements:
        click.echo(f"  DISAGREEMENT {found.what} ({found.count} points)\n    {_reproducer(found)}")
    click.echo(f"  {len(proof.disagreements)} disagreements")


def _reproducer(found: "Disagreement") -> str:
    from ._common import config_text

    space = found.point.space
    return (
        f"tuner explain {space.problem} --arch {space.target.arch} --config {config_text(found.point.config)}"
    )


def _jax_version() -> str:
    from importlib.metadata import version

    return version("jax")


def _json(proofs: "list[Proof]") -> dict[str, Any]:
    import dataclasses

    return {
        "target": proofs[0].target.to_dict(),
        "jax": _jax_version(),
        "rung": "compiled" if proofs[0].compiled else "lowered",
        "points": {proof.family.name: dict(sorted(proof.points.items())) for proof in proofs},
        "by_rule": {
            proof.family.name: {
                rule.id: {
                    **dataclasses.asdict(proof.by_rule[rule.id]),
                    "noticed": rule.noticed,
                    "kind": rule.kind,
                    "implied": not rule.decides(proof.target.arch),
                    "source": rule.source,
                }
                for rule in proof.family.rules
            }
            for proof in proofs
        },
        "undecided": {proof.family.name: list(proof.undecided) for proof in proofs},
        "disagreements": [
            {
                "family": proof.family.name,
                "problem": {
                    "kernel": found.point.space.problem.kernel,
                    **found.point.space.problem.to_dict(),
                },
                "config": dataclasses.asdict(found.point.config),
                "rules": list(found.rules),
                "what": found.what,
                "count": found.count,
            }
            for proof in proofs
            for found in proof.disagreements
        ],
    }
