"""`tuner doctor`: what this machine can do, and how to get the rest."""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from ._common import db_option, json_option, print_json


@click.command("doctor", short_help="Check Python, jax, GPU, compiler and database.")
@db_option
@json_option
def command(db: str | None, as_json: bool) -> int:
    """Check what this machine can do. Exit 0 also without a GPU; 1 when something needed is broken."""
    checks = [_python(), *_packages(), _gpu(), _cuda_plugin(), _ptxas(), _database(db)]
    if as_json:
        print_json({"checks": [{k: c[k] for k in ("name", "ok", "detail", "fix")} for c in checks]})
    else:
        for check in checks:
            mark = "ok " if check["ok"] else "no "
            fix = "" if check["ok"] or not check["fix"] else f"; {check['fix']}"
            click.echo(f"{mark} {check['name']:<14} {check['detail']}{fix}")
    return 1 if any(not c["ok"] and c["needed"] for c in checks) else 0


def _check(name: str, ok: bool, detail: str, fix: str = "", *, needed: bool = True) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail, "fix": "" if ok else fix, "needed": needed}


def _python() -> dict[str, Any]:
    found = sys.version.split()[0]
    return _check("python", sys.version_info >= (3, 12), found, "use Python 3.12 or newer")


def _packages() -> list[dict[str, Any]]:
    checks = []
    for package in ("jax", "jaxlib", "optuna", "numpy", "pandas", "sqlalchemy"):
        try:
            checks.append(_check(package, True, version(package)))
        except PackageNotFoundError:
            checks.append(_check(package, False, "not installed", f"pip install {package}"))
    return checks


def _gpu() -> dict[str, Any]:
    from tuner.device import NO_GPU_FIX, driver_version, gpus
    from tuner.search_spaces.errors import NoGpuError

    try:
        found = gpus()
        told = ", ".join(
            f"{g.index}: {g.target.device_kind} ({g.target.arch}, {g.target.sm_count} SMs)" for g in found
        )
        return _check("gpu", True, f"{told}, driver {driver_version()}", needed=False)
    except NoGpuError as error:
        return _check("gpu", False, error.message, NO_GPU_FIX, needed=False)


def _cuda_plugin() -> dict[str, Any]:
    for package in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            return _check("cuda plugin", True, f"{package} {version(package)}", needed=False)
        except PackageNotFoundError:
            continue
    fix = "install mosaic-tuner[cuda13]; without a GPU, [deviceless] in an environment of its own"
    return _check("cuda plugin", False, "not installed", fix, needed=False)


def _ptxas() -> dict[str, Any]:
    from tuner.compiling import find_ptxas

    found = find_ptxas()
    fix = "install the CUDA toolkit, or mosaic-tuner[deviceless]"
    return _check("ptxas", bool(found), found or "not found", fix, needed=False)


def _database(db: str | None) -> dict[str, Any]:
    from tuner.results.database import default_url, parsed, redacted
    from tuner.results.store import Store
    from tuner.search_spaces.errors import DatabaseError

    url = db or default_url()
    try:
        with Store.open(url, read_only=True) as store:
            count = len(store.bests())
        if reason := _unwritable(parsed(url).database, server=parsed(url).host is not None):
            fix = "choose another place with --db or MOSAIC_TUNER_DB"
            return _check("database", False, f"{redacted(url)} cannot be written: {reason}", fix)
        return _check("database", True, f"{redacted(url)}, {count} best configurations")
    except DatabaseError as error:
        return _check("database", False, error.message, error.fix)


def _unwritable(path: str | None, *, server: bool) -> str:
    """Why no database can be written at `path`, or ""; creates nothing that stays."""
    import os
    import tempfile
    from pathlib import Path

    if server or path is None:
        return ""
    if Path(path).is_file() and not os.access(path, os.W_OK):
        return "the file is read-only"
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"
