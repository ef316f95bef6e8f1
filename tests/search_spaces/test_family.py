"""Families are found by their FAMILY; configurations are built from named fields alone."""

import dataclasses
import json
import math
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner.search_spaces
from tests import hopper_mgpu
from tests.search_spaces.spaces import PROBLEMS, space_of
from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.architecture import reference_target
from tuner.search_spaces.errors import NoLegalConfigError, UnsupportedError, UsageError
from tuner.search_spaces.family import KernelFamily, families, family_for, named_family, problem_class
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem

MATMUL = MatmulProblem(m=4096, n=4096, k=4096, dtype="bfloat16")
COPY = CopyProblem(m=4096, n=4096, dtype="float32")
SM_90 = reference_target("sm_90")
each_family = pytest.mark.parametrize("family", [matmul_hopper.FAMILY, copy.FAMILY], ids=lambda f: f.name)


def test_families_are_found() -> None:
    assert set(families()) >= {"matmul_hopper", "copy_tma"}
    assert all(name == family.name == family.address for name, family in families().items())


def test_a_new_module_is_found_by_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import dataclasses
        from tuner.search_spaces.copy import FAMILY
        FAMILY = dataclasses.replace(FAMILY, name="newcomer", address="")
    """
    (tmp_path / "newcomer.py").write_text(textwrap.dedent(code))
    monkeypatch.setattr(
        tuner.search_spaces, "__path__", [*tuner.search_spaces.__path__, str(tmp_path)], raising=True
    )
    families.cache_clear()
    try:
        assert families()["newcomer"].kernel == "copy"
        assert named_family("newcomer").address == "newcomer"
    finally:
        sys.modules.pop("tuner.search_spaces.newcomer", None)
        families.cache_clear()


def test_a_family_of_the_users_own() -> None:
    family = named_family("tests.hopper_mgpu:FAMILY")
    assert family.address == "tests.hopper_mgpu:FAMILY"
    assert family.rules == hopper_mgpu.FAMILY.rules
    assert family_for(MATMUL, SM_90, "tests.hopper_mgpu:FAMILY") == family
    assert problem_class("tests.hopper_mgpu:FAMILY") is MatmulProblem
    with pytest.raises(UnsupportedError, match="needs WGMMA"):
        family_for(MATMUL, reference_target("sm_100"), "tests.hopper_mgpu:FAMILY")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("matmul_hoper", "did you mean matmul_hopper"),
        ("tests.hopper_mgpu:FAMILI", "cannot be imported"),
        ("no_such_module_here:FAMILY", "cannot be imported"),
        ("tests.hopper_mgpu:RULES", "is a tuple"),
    ],
)
def test_what_is_no_family_is_refused(name: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        named_family(name)
    assert told in str(caught.value)
    assert caught.value.fix


def test_an_unknown_kernel_suggests_one() -> None:
    assert problem_class("copy") is CopyProblem
    with pytest.raises(UsageError, match="did you mean matmul"):
        problem_class("matmull")


@each_family
def test_left_out_fields_take_the_default(family: KernelFamily) -> None:
    assert family.config({}) == family.config_class() == family.parse_config("")
    assert family.config({"tile_m": 192}) == dataclasses.replace(family.config_class(), tile_m=192)


@each_family
def test_numpy_integers_become_integers(family: KernelFamily) -> None:
    config = family.config({"tile_m": np.int64(64), "max_concurrent_steps": np.uint8(3)})
    assert config == family.config({"tile_m": 64, "max_concurrent_steps": 3})
    assert json.dumps(dataclasses.asdict(config)) == json.dumps(
        dataclasses.asdict(family.config_class(tile_m=64, max_concurrent_steps=3))
    )


BAD_VALUES = [True, np.bool_(False), 64.0, math.nan, np.float32(64), "64", None, -1]


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
@each_family
def test_what_is_no_number_is_refused(family: KernelFamily, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        family.config({"tile_m": value})
    assert str(caught.value).startswith(f"tile_m={value!r}")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["m", "MN", 0, 1, True, None])
def test_what_is_no_choice_is_refused(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        matmul_hopper.FAMILY.config({"wg_dimension": value})
    assert str(caught.value) == f"wg_dimension={value!r} is unknown; choose from M, N"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("tile_m=64", {"tile_m": 64}),
        (" tile_m=64 , tile_n=8,", {"tile_m": 64, "tile_n": 8}),
        ("cluster_dimension=none", {"cluster_dimension": None}),
        ("cluster_dimension=None,wg_dimension=M", {"cluster_dimension": None, "wg_dimension": "M"}),
        ("cluster_dimension=N,barriers=per_operand", {"cluster_dimension": "N", "barriers": "per_operand"}),
    ],
)
def test_configurations_are_parsed(text: str, fields: dict[str, Any]) -> None:
    assert matmul_hopper.FAMILY.parse_config(text) == matmul_hopper.TuningConfig(**fields)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tile_m", "'tile_m' is not name=value"),
        ("tile_m=", "tile_m='' is not a whole number"),
        ("tile_m=64.0", "tile_m='64.0' is not a whole number"),
        ("tile_m=nan", "tile_m='nan' is not a whole number"),
        ("tile_m=True", "tile_m='True' is not a whole number"),
        ("tile_m=-64", "tile_m=-64 is below 0"),
        ("tilem=64", "unknown field 'tilem' of matmul_hopper; did you mean tile_m"),
        ("warp_specialized=true", "unknown field 'warp_specialized' of matmul_hopper"),
        ("wg_dimension=K", "wg_dimension='K' is unknown; choose from M, N"),
        ("cluster_dimension=K", "cluster_dimension='K' is unknown; choose from none, M, N"),
        ("barriers=one", "barriers='one' is unknown; choose from shared, per_operand"),
    ],
)
def test_what_cannot_be_parsed_is_told(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        matmul_hopper.FAMILY.parse_config(text)
    assert told in str(caught.value)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_default_is_legal(problem: Problem) -> None:
    space = space_of(problem)
    assert space.family.default_config(problem, SM_90) in space


def test_the_default_is_what_an_engineer_writes_down() -> None:
    wanted = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "wg_dimension": "M", "max_concurrent_steps": 4}
    assert dataclasses.asdict(matmul_hopper.default_config(MATMUL, SM_90)).items() >= wanted.items()


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *((f"sm_{version}", "matmul_mma") for version in (80, 86, 87, 89, 120, 121)),
        ("sm_90", "matmul_hopper"),
        *((f"sm_{version}", "matmul_blackwell") for version in (100, 103, 110)),
    ],
)
def test_every_architecture_has_its_matmul(arch: str, name: str) -> None:
    """And what none of its kernels takes is one error before anything is tried, not hundreds of failures."""
    assert family_for(MATMUL, reference_target(arch)).name == name
    with pytest.raises(UnsupportedError) as caught:
        family_for(dataclasses.replace(MATMUL, acc_dtype="float16"), reference_target(arch))
    told = str(caught.value)
    assert name in told
    assert "\n" not in told
    assert caught.value.exit_code == 3
    assert isinstance(caught.value, NoLegalConfigError)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_87", "sm_89"])
def test_copies_need_no_barrier_before_hopper(arch: str) -> None:
    assert family_for(COPY, reference_target(arch)).name == "copy_cp_async"
    with pytest.raises(UnsupportedError, match=f"copy_tma needs TMA, which starts at sm_90, not {arch}"):
        family_for(CopyProblem(m=64, n=64, dtype="float64"), reference_target(arch))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"])
def test_copies_run_from_hopper_on(arch: str) -> None:
    target = reference_target(arch)
    space = space_of(COPY, target)
    assert space.family is copy.FAMILY
    assert (
        0 < max(space.family.columns(COPY, target, space.columns())["smem_bytes"]) < target.smem_optin_bytes
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"dtype": "float64"}, "not float64"),
        ({"dtype": "float32"}, "takes float32 with rhs=nk alone"),
        ({"dtype": "fp8_e4m3"}, "takes float8_e4m3fn with rhs=nk alone"),
        ({"dtype": "int8"}, "takes int8 with rhs=nk alone"),
        ({"dtype": "fp8_e5m2", "rhs": "nk"}, "writes bfloat16 or float16 or float32 of float8_e5m2"),
        ({"dtype": "int8", "rhs": "nk"}, "writes int32 of int8, not out_dtype=int8"),
        ({"dtype": "int8", "rhs": "nk", "acc_dtype": "float32"}, "accumulates int8 in int32"),
        ({"dtype": "u8"}, "not uint8"),
        ({"dtype": "int32"}, "not int32"),
        ({"dtype": "int4"}, "not int4"),
        ({"dtype": "bool"}, "not bool"),
        ({"rhs_dtype": "float16"}, "not bfloat16 and float16"),
        ({"acc_dtype": "bfloat16"}, "accumulates bfloat16 in float32, not acc_dtype=bfloat16"),
        ({"out_dtype": "float16"}, "writes bfloat16 or float32 of bfloat16, not out_dtype=float16"),
        ({"lhs": "km"}, "takes lhs stored (m, k), not (k, m)"),
        ({"batch": 2}, "takes one matrix, not batch=2"),
    ],
    ids=str,
)
def test_what_the_matmul_does_not_take_is_named(fields: dict[str, Any], told: str) -> None:
    problem = MatmulProblem.from_dict({"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16", **fields})
    with pytest.raises(UnsupportedError) as caught:
        family_for(problem, SM_90)
    assert told in str(caught.value)
    # The type or layout is the reason, never shared memory.
    assert "shared memory" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("dtype", ["bool", "float64", "complex64", "uint64"])
def test_what_the_copy_does_not_take_is_named(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match=f"not {dtype};"):
        family_for(CopyProblem(m=128, n=128, dtype=dtype), SM_90)
