from pathlib import Path

import pytest

from tuner.results.database import parsed
from tuner.results.store import Store, default_url, redacted
from tuner.search_spaces.errors import DatabaseError, UsageError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOSAIC_TUNER_DB", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_default_is_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/.local/share/mosaic-tuner/results.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_url() == f"sqlite:///{tmp_path}/.local/share/mosaic-tuner/results.db"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_url() == "sqlite:////data/mosaic-tuner/results.db"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("/data/mine.db", "sqlite:////data/mine.db"),
        ("sqlite:////data/mine.db", "sqlite:////data/mine.db"),
        ("mine.db", f"sqlite:///{Path.cwd()}/mine.db"),
        ("postgresql://me:secret@host/db", "postgresql+psycopg://me:secret@host/db"),
    ],
)
def test_environment_names_a_path_or_a_url(monkeypatch: pytest.MonkeyPatch, given: str, url: str) -> None:
    monkeypatch.setenv("MOSAIC_TUNER_DB", given)
    assert default_url() == url


def test_the_default_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOSAIC_TUNER_DB", str(tmp_path / "what?.db"))
    with Store.open() as store:
        assert store.where == str(tmp_path / "what?.db")


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parsed("~/mine.db").database == f"{tmp_path}/mine.db"


@pytest.mark.parametrize("name", ["a b.db", "a?mode=memory.db", "a#b.db", "a%41.db", "ä:@.db"])
def test_paths_are_taken_literally(tmp_path: Path, name: str) -> None:
    with Store.open(str(tmp_path / name)):
        assert name in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/mine.db", "/data/mine.db"),
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        (
            "postgresql://me:s%40ecret@host:5432/db?sslmode=require",
            "postgresql://me:***@host:5432/db?sslmode=require",
        ),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?password=***&user=me"),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
        ("postgresql://me:se/cr@et@host:port/db", "postgresql://***@host:port/db"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////x.db?mode=ro",
        "://",
        "x://y:secret@[",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        Store.open(url)
    assert "secret" not in str(refused.value)


def test_a_server_that_does_not_answer_is_named_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="needs the postgres extra")
    with pytest.raises(DatabaseError, match=r"postgresql.*me:\*\*\*@127.0.0.1:1") as failed:
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(failed.value)


def test_a_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(DatabaseError, match=r"mosaic-tuner\[postgres\]"):
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
