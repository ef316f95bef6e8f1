"""What is built, and how an installation of it gets on beside other people's packages."""

import email
import json
import os
import shlex
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("build", reason="needs the dev extra")
pytest.importorskip("hatchling", reason="needs the dev extra")

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("search_spaces", "kernels", "results")

SPACE = "space copy m=32768 n=16384 dtype=float32 --arch sm_90 --json"
EXPLAIN = "explain copy m=1024 n=1024 dtype=float32 --arch sm_90 --config tile_m=64,tile_n=64 --json"
BEST = "best copy m=32768 n=16384 dtype=float32 --device 'NVIDIA H200'"
OK, NOTHING_FOUND = 0, 3


def run(*command: object, **options: Any) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def needed(
    requirements: Iterable[str], extras: Iterable[str], seen: set[str]
) -> Iterator[metadata.Distribution]:
    """The installed distributions that these requirements come down to."""
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in seen or (marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras))):
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        yield distribution
        yield from needed(distribution.requires or (), requirement.extras, seen)


class Environment:
    """A virtual environment that sees what the wheel needs without extras, and nothing else of this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.python = folder / "venv/bin/python"
        venv.create(folder / "venv", symlinks=True)
        # Links outside the environment: whatever pip does in there, it never follows them to the real files.
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for distribution in needed(metadata_of(wheel).get_all("Requires-Dist", []), (), set()):
            for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                (borrowed / name).symlink_to(str(distribution.locate_file(name)))
        (site,) = folder.glob("venv/lib/python*/site-packages")
        (site / "borrowed.pth").write_text(f"{borrowed}\n")
        self.pip("install", "--no-index", wheel)

    def pip(self, *arguments: object) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", *arguments)

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XDG_"))}
        return kept | {"HOME": str(self.home), "MOSAIC_TUNER_DB": f"sqlite:///{self.home / 'records.db'}"}

    def execute(self, code: str, cwd: Path | None = None) -> str:
        return run(self.python, "-c", code, cwd=cwd or self.home, env=self.variables)

    def tuner(self, arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.python.with_name("tuner"), *shlex.split(arguments)]
        return subprocess.run(
            command, cwd=self.home, env=self.variables, capture_output=True, text=True, check=False
        )


@pytest.fixture
def installed(distributions: tuple[Path, Path], tmp_path: Path) -> Environment:
    _, wheel = distributions
    return Environment(tmp_path, wheel)


def check_commands(environment: Environment) -> None:
    space, explain, best = (environment.tuner(command) for command in (SPACE, EXPLAIN, BEST))
    assert space.returncode == OK, space.stderr
    assert json.loads(space.stdout)["size"] > 0
    assert explain.returncode == OK, explain.stderr
    assert json.loads(explain.stdout)["legal"] is True
    assert best.returncode in {OK, NOTHING_FOUND}, best.stderr
    assert "Traceback" not in best.stderr


def test_wheel_holds_every_room_under_tuner(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    expected = {"tuner/py.typed"}
    for folder in ("tuner", *ROOMS):
        for path in [*ROOT.joinpath(folder).rglob("*.py"), *ROOT.joinpath(folder).rglob("shipped/*.jsonl")]:
            place = path.relative_to(ROOT)
            expected.add(str(place if folder == "tuner" else "tuner" / place))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    assert expected <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tuner"}


def test_wheel_metadata(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    fields = metadata_of(wheel)
    assert fields["Version"] == project["version"]
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.12"
    assert set(fields.get_all("Provides-Extra", [])) == {"cuda13", "deviceless", "dev", "postgres", "report"}


def test_sdist_holds_what_is_needed_to_build_and_test(distributions: tuple[Path, Path]) -> None:
    sdist, _ = distributions
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.split("/", 1)[1] for member in members}
    assert {"Makefile", "constraints.txt", "LICENSE", "tools/setup.sh", "tests/test_packaging.py"} <= names
    assert all(member.isfile() for member in members)
    assert not [name for name in names if name.startswith(tuple(f"tuner/{room}/" for room in ROOMS))]


def test_commands_answer_without_extras(installed: Environment) -> None:
    check_commands(installed)


def test_only_tuner_is_importable_at_top_level(installed: Environment) -> None:
    names = [*ROOMS, "tests", "tuner"]
    code = f"import importlib.util as i; print([name for name in {names} if i.find_spec(name)])"
    assert installed.execute(code).strip() == "['tuner']"


def test_project_with_folders_of_the_same_names(installed: Environment) -> None:
    project = installed.home / "project"
    for room in ROOMS:
        project.joinpath(room).mkdir(parents=True)
        project.joinpath(room, "__init__.py").write_text("OWNER = 'project'\n")
    for room in ROOMS:
        owners = f"{room}.OWNER, getattr(tuner.{room}, 'OWNER', 'tuner')"
        code = f"import {room}, tuner.{room}; print({owners})"
        assert installed.execute(code, cwd=project).split() == ["project", "tuner"]


def test_beside_the_kernels_package_of_others(installed: Environment) -> None:
    try:
        installed.pip("install", "--quiet", "kernels")
    except AssertionError as error:
        pytest.skip(f"the kernels package cannot be downloaded: {str(error).splitlines()[-1]}")
    theirs = "import kernels; kernels.get_kernel"
    installed.execute(f"import tuner.kernels; {theirs}; assert kernels is not tuner.kernels")
    check_commands(installed)
    installed.pip("uninstall", "--yes", "mosaic-tuner")
    installed.execute(theirs)
    gone = installed.execute("import importlib.util; print(importlib.util.find_spec('tuner'))")
    assert gone.strip() == "None"
