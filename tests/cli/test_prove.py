"""`tuner prove`: what it prints, and what it exits with."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.proof import mistaken
from tuner.proof import prove as proving
from tuner.search_spaces.family import families

Run = Callable[..., tuple[int, str, str]]
Valid = Callable[[str, str], Any]

ASKED = ("prove", "sm_90", "--kernel", "copy", "--samples", "60", "--rung", "lowered")


@pytest.fixture(autouse=True)
def _small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.proof.points._POOL", 6_000)
    monkeypatch.setattr("tuner.proof.points._BASES", 300)


def test_one_json_object(run: Run, valid: Valid) -> None:
    code, out, err = run(*ASKED, "--json")
    found = valid("prove", out)
    assert (found["disagreements"], err) == ([], "")
    assert code == (1 if any(found["undecided"].values()) else 0)
    assert found["target"]["arch"] == "sm_90"
    assert found["rung"] == "lowered"
    assert set(found["by_rule"]["copy_tma"]) == {rule.id for rule in families()["copy_tma"].rules}
    assert found["points"]["copy_tma"]["legal"] >= 20


def test_a_disagreement_is_told_with_a_command_that_shows_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = mistaken.without("copy.box")
    monkeypatch.setattr(proving, "families", lambda: {family.name: family})
    code, out, _ = run(*ASKED[:4], "--samples", "120", "--rung", "lowered")
    assert code == 1
    assert "DISAGREEMENT legal, but jax says ValueError" in out
    assert "tuner explain copy m=1024 n=512 dtype=float32 --arch sm_90 --config tile_m=" in out


def test_bad_input(run: Run) -> None:
    for arguments, code, part in (
        (("prove", "sm_75"), 3, "below sm_80"),
        (("prove", "sm_99"), 2, "unknown architecture"),
        (("prove", "sm_90", "--kernel", "mathmul"), 3, "mathmul"),
        (("prove", "sm_90", "--samples", "1"), 2, "30"),
        (("prove",), 2, "ARCH"),
    ):
        found, out, err = run(*arguments)
        assert (found, out) == (code, ""), arguments
        assert part in err


def test_without_a_compiler(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.compiling.missing_compiler", lambda: "ptxas")
    code, _, err = run("prove", "sm_90", "--rung", "compiled")
    assert code == 2
    assert "--rung compiled needs ptxas" in err
