"""A sample of `legal` and `refused` on the GPU at hand."""

from pathlib import Path
from typing import Any

import pytest

from tuner.farm import Farm

from . import legal, refused

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu() -> Any:
    from tuner.device import gpus

    return gpus()[0]


def test_what_is_legal_is_right(gpu: Any, tmp_path: Path) -> None:
    assert set(legal.run(gpu, 200, 1, tmp_path / "legal.jsonl.gz")) == {"right"}


@pytest.mark.parametrize("case", refused.CASES, ids=[f"{case[1]} {case[0]}" for case in refused.CASES])
def test_what_is_refused_is_not(gpu: Any, case: Any) -> None:
    with Farm(1) as farm:
        record = refused.attempt(gpu, farm, case)
    assert record["rules"] == (case[0],)
    assert record["outcome"] != "right"
