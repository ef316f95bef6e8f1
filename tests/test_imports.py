"""What importing costs, and which way the arrows between the rooms go."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("search_spaces", "kernels", "results")

HEAVY = ("jax", "jaxlib", "numpy", "optuna", "pandas", "rich", "scipy", "sqlalchemy")
HELP = """
import contextlib, io, runpy, sys
sys.argv = ["tuner", "--help"]
with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    runpy.run_module("tuner", run_name="__main__")
assert "sweep" in shown.getvalue(), shown.getvalue()
"""


def heavy_modules_after(code: str) -> set[str]:
    """Which of the heavy modules a fresh Python has loaded after running `code`."""
    code += f"\nimport sys\nprint(*sorted(set(sys.modules) & set({HEAVY})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import tuner", HELP], ids=["import tuner", "tuner --help"])
def test_starts_light(code: str) -> None:
    assert heavy_modules_after(code) == set()


@pytest.mark.parametrize("module", ["numpy", "rich"])
def test_heavy_modules_are_noticed(module: str) -> None:
    """Without this, a mistake in the helper would let every other test here pass."""
    assert module in heavy_modules_after(f"import tuner, {module}")


def test_search_spaces_need_numpy_only() -> None:
    code = """
import importlib, pkgutil
import tuner.search_spaces as room
for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
    importlib.import_module(module.name)
"""
    assert heavy_modules_after(code) <= {"numpy"}


def sources(*folders: str) -> list[Path]:
    """The Python files of these folders, each once: links are not followed."""
    return sorted(path for folder in folders for path in ROOT.joinpath(folder).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The full names of everything a file imports, at its top or inside functions."""
    place = path.relative_to(ROOT).with_suffix("").parts
    package = (place if place[0] == "tuner" else ("tuner", *place))[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += [node.module] if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def inside(module: str, *packages: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize(
    ("room", "known"),
    [
        ("search_spaces", ["tuner.search_spaces"]),
        ("kernels", ["tuner.search_spaces", "tuner.kernels"]),
        ("results", ["tuner.search_spaces", "tuner.results"]),
    ],
)
def test_arrows_go_one_way(room: str, known: list[str]) -> None:
    strays = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(room)
        for module in imported(path)
        if inside(module, "tuner") and not inside(module, *known)
    ]
    assert strays == []


def test_nobody_imports_a_room_by_its_bare_name() -> None:
    strays = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources("tuner", *ROOMS, "tests", "benchmarks")
        for module in imported(path)
        if inside(module, *ROOMS)
    ]
    assert strays == []


def test_only_kernels_imports_pallas() -> None:
    strays = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources("tuner", "results", "search_spaces")
        for module in imported(path)
        if inside(module, "jax.experimental.pallas")
    ]
    assert strays == []
    assert not [path for path in sources("tuner", "results", "search_spaces") if "plgpu" in path.read_text()]


def families() -> set[str]:
    """The modules of search_spaces/ that declare a family."""

    def declares(path: Path) -> bool:
        return any(
            isinstance(target, ast.Name) and target.id == "FAMILY"
            for statement in ast.parse(path.read_text()).body
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        )

    return {path.stem for path in sources("search_spaces") if declares(path)}


def test_no_other_file_names_a_family_module() -> None:
    """Families are found, not listed: adding one touches no file of tuner/ or results/."""
    names = families()
    assert names
    modules = [f"tuner.{room}.{name}" for room in ("search_spaces", "kernels") for name in names]
    strays = []
    for path in sources("tuner", "results"):
        text = path.read_text()
        strays += [f"{path.relative_to(ROOT)} imports {m}" for m in imported(path) if inside(m, *modules)]
        # A name such as `copy` is also a plain word; one with an underscore can only be the module.
        strays += [f"{path.relative_to(ROOT)} names {name}" for name in names if "_" in name and name in text]
        strays += [f"{path.relative_to(ROOT)} names {module}" for module in modules if module in text]
    assert strays == []
