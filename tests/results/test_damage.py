import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.results import schema
from tuner.results.errors import DiskFullError, NoDatabaseError
from tuner.results.store import Store
from tuner.search_spaces.errors import DatabaseError

Maker = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path, measured: Maker) -> Path:
    """A closed database of 200 measurements."""
    place = tmp_path / "results.db"
    with Store.open(str(place)) as store:
        for index in range(200):
            store.add(measured(100 + index, index / 10))
    return place


def use(place: Path, *, read_only: bool) -> None:
    with Store.open(str(place), read_only=read_only) as store:
        store.measurements()
        store.bests()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[: len(content) // 2 + 100],
        lambda content: content[:50],
        lambda content: b"\xff\xfe\x00 not UTF-8 \x80" * 1000,
        lambda content: b"{}",
        lambda content: content[:100] + b"\xa5" * (len(content) - 100),
    ],
    ids=["half", "half a page", "no page", "garbage", "JSON", "header only"],
)
def test_damage_is_told_with_what_to_do(path: Path, damage: Any, read_only: bool) -> None:
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DatabaseError) as told:
        use(path, read_only=read_only)
    assert str(path) in told.value.message
    assert f"mv {path} {path}.broken" in told.value.fix
    assert told.value.code == "DATABASE"
    assert path.resolve() not in {opened.resolve() for opened in Path("/proc/self/fd").iterdir()}


def test_damage_inside_is_told_when_it_is_met(path: Path) -> None:
    with Store.open(str(path), read_only=True) as store:
        content = bytearray(path.read_bytes())
        content[8192:] = b"\xa5" * (len(content) - 8192)
        path.write_bytes(content)
        with pytest.raises(DatabaseError, match="damaged"):
            store.measurements()


@pytest.mark.parametrize("create", [False, True])
def test_an_empty_file_is_a_new_database(path: Path, measured: Maker, create: bool) -> None:
    path.write_bytes(b"")
    with Store.open(str(path), create=create, read_only=True) as store:
        assert (store.measurements(), store.bests()) == ([], [])
    assert path.stat().st_size == 0
    with Store.open(str(path), create=create) as store:
        assert store.measurements() == []
        assert store.add(measured())


def test_a_missing_database(tmp_path: Path) -> None:
    place = tmp_path / "folder" / "results.db"
    for read_only in (False, True):
        with pytest.raises(NoDatabaseError, match="holds no records"):
            Store.open(str(place), create=False, read_only=read_only)
    with Store.open(str(place), read_only=True) as store:
        assert store.bests() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_never_touched(path: Path, read_only: bool) -> None:
    newer = schema.SCHEMA_VERSION + 1
    with Store.open(str(path)) as store, store._engine.begin() as connection:
        connection.execute(schema.SCHEMA.update().values(version=newer))
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=rf"schema {newer}.* up to {schema.SCHEMA_VERSION}.*pip install"):
        Store.open(str(path), read_only=read_only)
    assert path.read_bytes() == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "results.db", Path("/proc/results.db"), tmp_path):
        for read_only in (False, True) if place == tmp_path else (False,):
            with pytest.raises(DatabaseError, match="MOSAIC_TUNER_DB") as told:
                use(place, read_only=read_only)
            assert str(place) in told.value.message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"\0" * 4096)


def test_a_full_disk_keeps_what_was_recorded(small_disk: Path, measured: Maker) -> None:
    place = small_disk / "results.db"
    added = []

    def add_for_ever(store: Store) -> None:
        for index in itertools.count():
            store.add(measured(100, index / 1000, reason="x" * 2000))
            added.append(index)

    with Store.open(str(place)) as store:
        with pytest.raises(DiskFullError, match="no space left") as told:
            add_for_ever(store)
        assert told.value.code == "DISK_FULL"
        assert [m.utc[-7:] for m in store.measurements()] == [f"{index % 1000:03}000Z" for index in added]
    with Store.open(str(place), read_only=True) as store:
        assert len(store.measurements()) == len(added) > 0


def test_a_disk_full_from_the_start(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        fill(small_disk)
    with pytest.raises(DiskFullError):
        Store.open(str(small_disk / "results.db"))
    (small_disk / "ballast").unlink()
    with Store.open(str(small_disk / "results.db")) as store:
        assert store.bests() == []


def test_a_disk_that_fills_while_nothing_is_written(small_disk: Path, measured: Maker) -> None:
    with Store.open(str(small_disk / "results.db")) as store:
        store.add(measured())
        with pytest.raises(OSError, match="No space"):
            fill(small_disk)
        with pytest.raises(DiskFullError):
            store.add(measured(second=1, reason="x" * 100_000))
        (small_disk / "ballast").unlink()
        assert store.add(measured(second=59))


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


def test_a_read_only_folder(small_disk: Path, path: Path) -> None:
    place = shutil.copy(path, small_disk / "results.db")
    remount(small_disk, "ro")
    try:
        with Store.open(str(place), read_only=True) as store:
            assert len(store.measurements()) == 200
            assert len(store.bests()) == 1
        with pytest.raises(DatabaseError, match="make it writable"):
            Store.open(str(place))
        with pytest.raises(DatabaseError, match="make it writable"):
            Store.open(str(small_disk / "other.db"))
    finally:
        remount(small_disk, "rw")


def test_a_read_only_folder_with_records_still_in_the_journal(
    small_disk: Path, path: Path, measured: Maker
) -> None:
    """Leaving them out would answer with less than is recorded."""
    with Store.open(str(path)) as store:
        store.add(measured(second=59))
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{small_disk}/results.db{suffix}")
    remount(small_disk, "ro")
    try:
        with pytest.raises(DatabaseError, match=r"results\.db-wal"):
            Store.open(str(small_disk / "results.db"), read_only=True)
    finally:
        remount(small_disk, "rw")
    with Store.open(str(small_disk / "results.db"), read_only=True) as store:
        assert len(store.measurements()) == 201


@pytest.mark.parametrize("mode", ["file", "folder"])
def test_permissions(path: Path, mode: str) -> None:
    place = path if mode == "file" else path.parent
    place.chmod(0o500)
    if os.access(place, os.W_OK):
        pytest.skip("root may write everywhere")
    use(path, read_only=True)
    with pytest.raises(DatabaseError, match="make it writable"):
        use(path, read_only=False)
    place.chmod(0o700)
