"""What several commands share: problems from key=value, devices, and output."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tuner.search_spaces.architecture import Target
    from tuner.search_spaces.problem import Problem

SCHEMA_VERSION = 1

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def kernel_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """KERNEL key=value... as every command that names a problem takes them."""
    function = click.argument("fields", nargs=-1, metavar="key=value...")(function)
    return click.argument("kernel")(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`: one object on stdout, nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(
        function
    )


def db_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--db URL`."""
    text = "Results database: a path or a SQLAlchemy URL. Default: $MOSAIC_TUNER_DB, else your data folder."
    return click.option("--db", metavar="URL", help=text)(function)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--arch` and `--device`."""
    function = click.option("--device", metavar="NAME", help='A known device, such as "NVIDIA H100 PCIe".')(
        function
    )
    text = "An architecture (sm_90): stands for its reference device."
    return click.option("--arch", metavar="ARCH", help=text)(function)


def problem_from(kernel: str, fields: Iterable[str]) -> "Problem":
    """The problem that `KERNEL key=value...` names.

    Raises:
      UsageError: an unknown kernel or key, a malformed or missing value.
    """
    from tuner.search_spaces.errors import UsageError
    from tuner.search_spaces.family import problem_class

    here = str(Path.cwd())
    if ":" in kernel and here not in sys.path:
        # As `python -m` would, a kernel in the folder one stands in is found; last, so it shadows nothing.
        sys.path.append(here)
    found = problem_class(kernel)
    values: dict[str, Any] = {}
    for field in fields:
        name, sign, value = field.partition("=")
        if not sign:
            raise UsageError(f"{field!r} is not key=value", fix="write for example m=4096")
        if name in values:
            raise UsageError(f"{name} is given twice", fix=f"give {name}= once")
        values[name] = _number(value)
    return found.from_dict(values)


def _number(text: str) -> int | str:
    """Digits become an int; everything else stays text, for the problem to judge."""
    try:
        return int(text) if text.lstrip("+-").isdigit() else text
    except ValueError:
        return text


def target_from(arch: str | None, device: str | None) -> "Target":
    """The device meant by --arch, --device, or neither (the first GPU here).

    Raises:
      UsageError: both given, an unknown name, or neither and no GPU.
    """
    from tuner.search_spaces.architecture import device_target, reference_target
    from tuner.search_spaces.errors import NoGpuError, UsageError

    if arch and device:
        raise UsageError("--arch and --device were both given", fix="give one of them")
    if arch:
        return reference_target(arch)
    if device:
        return device_target(device)
    from tuner.device import gpus

    try:
        return gpus()[0].target
    except NoGpuError as error:
        raise UsageError(
            "no GPU here, and no --arch or --device", fix="add --arch sm_90, for example"
        ) from error


def print_json(answer: Mapping[str, Any]) -> None:
    """One object on stdout: strict JSON with the schema's version."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **answer}, allow_nan=False))


def config_text(config: Any) -> str:
    """`name=value,...` as `--config` takes it."""
    import dataclasses

    fields = config if isinstance(config, Mapping) else dataclasses.asdict(config)
    return ",".join(f"{name}={'none' if value is None else value}" for name, value in fields.items())
