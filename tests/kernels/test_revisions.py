"""Generated code changes only together with REVISION: records of another program are never served."""

import dataclasses
from typing import Any

import jax
import pytest

from tests.kernels import lowering, revisions
from tests.search_spaces.spaces import space_of
from tuner.proof.verdict import module_text
from tuner.search_spaces import matmul_hopper
from tuner.search_spaces.family import families

TOLD = "raise REVISION in its file, then: python -m tests.kernels.revisions --write"


@pytest.mark.parametrize("name", revisions.PINNED)
def test_generated_code_changes_with_the_revision(name: str) -> None:
    family, entry = families()[name], revisions.recorded()[name]
    assert entry["revision"] == family.revision, f"the revision of {name} is new: {TOLD}"
    if jax.__version__ not in entry["jax"]:
        pytest.skip(f"jax {jax.__version__} is not recorded: python -m tests.kernels.revisions --write")
    assert revisions.hashes(family) == entry["jax"][jax.__version__], f"{name} generates other code: {TOLD}"


def test_every_family_is_pinned() -> None:
    assert set(revisions.PINNED) == set(families())
    for name, pinned in revisions.PINNED.items():
        for problem, config in pinned:
            assert config in space_of(problem, revisions.target(name))


def test_the_text_is_of_the_program_alone() -> None:
    """It names no file, does not depend on what was lowered before, and sees one field changed."""
    (other, other_config), (problem, config), *_ = revisions.PINNED["matmul_hopper"]

    def text(**fields: Any) -> str:
        changed = dataclasses.replace(config, **fields)
        return module_text(lowering.lowered(matmul_hopper.FAMILY, problem, changed))

    once = text()
    lowering.lowered(matmul_hopper.FAMILY, other, other_config)
    assert text() == once
    assert "matmul_hopper.py" not in once
    assert "loc(" not in once
    assert text(barriers="shared") != once
    assert text(grid_tile_width=config.grid_tile_width - 1) != once


@pytest.fixture
def _no_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "FILE", tmp_path / "revisions.json")


@pytest.mark.usefixtures("_no_file")
def test_changed_code_is_not_recorded_under_the_old_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "hashes", lambda family: {"pinned": "one"})
    revisions.write()
    monkeypatch.setattr(revisions, "hashes", lambda family: {"pinned": "other"})
    with pytest.raises(SystemExit, match="raise its REVISION first"):
        revisions.write()
    monkeypatch.setattr(revisions, "hashes", lambda family: {"pinned": "one", "more": "two"})
    revisions.write()
    assert revisions.recorded()["copy_tma"]["jax"][jax.__version__] == {"pinned": "one", "more": "two"}
