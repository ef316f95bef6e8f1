"""The tables of architectures and devices agree with themselves."""

import dataclasses

import pytest

from tuner.search_spaces.architecture import (
    ARCHITECTURES,
    DEVICES,
    KIB,
    Architecture,
    Target,
    architecture,
    device_target,
    reference_target,
)
from tuner.search_spaces.barriers import load_barriers
from tuner.search_spaces.errors import UnsupportedError, UsageError

each_architecture = pytest.mark.parametrize("row", ARCHITECTURES.values(), ids=ARCHITECTURES)
each_device = pytest.mark.parametrize("row", DEVICES.values(), ids=DEVICES)

# Dense 16-bit TFLOP/s at the boost clock, from the vendor's data sheets.
PEAK_TFLOPS = {
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA RTX A6000": 155,
    "NVIDIA L4": 121,
    "NVIDIA H200": 989,
    "NVIDIA B200": 2250,
    "NVIDIA RTX PRO 6000 Blackwell": 504,
}


def test_every_architecture_of_the_issue_is_there() -> None:
    wanted = {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert set(ARCHITECTURES) == wanted


@each_architecture
def test_an_architecture_agrees_with_itself(row: Architecture) -> None:
    assert ARCHITECTURES[row.name] is row
    major = int(row.compute_capability.split(".")[0])
    # CUDA: 164, 100 or 228 KiB an SM, 1 KiB of each reserved.
    assert row.smem_optin_bytes in (163 * KIB, 99 * KIB, 227 * KIB)
    assert row.has_tma == (major >= 9)
    assert (row.max_cluster_blocks > 1) == ("cluster_mbarrier" in row.synchronisation) == (major >= 9)
    assert ("tensor_core_mbarrier" in row.synchronisation) == (major in (10, 11))
    assert "cp_async" in row.synchronisation
    assert len(set(row.synchronisation)) == len(row.synchronisation)
    assert DEVICES[row.reference_device].arch == row.name


@each_architecture
def test_loads_use_the_barriers_there_are(row: Architecture) -> None:
    assert load_barriers(row, operands=1) == (("shared",) if row.has_tma else ("none",))
    assert load_barriers(row, operands=2) == (("shared", "per_operand") if row.has_tma else ("none",))


@each_device
def test_a_device_agrees_with_its_architecture(row: Target) -> None:
    assert row.device_kind.startswith("NVIDIA ")
    assert row.architecture.name == row.arch
    assert row.smem_optin_bytes == row.architecture.smem_optin_bytes
    assert not row.reference
    assert 1 <= row.sm_count <= 200
    assert 1000 <= row.max_sm_clock_mhz <= 3000
    assert 1 * KIB * KIB <= row.l2_bytes <= 128 * KIB * KIB
    assert 100e9 <= row.dram_bytes_per_s <= 10e12
    assert Target(**row.to_dict()) == row


@pytest.mark.parametrize(("kind", "tflops"), PEAK_TFLOPS.items())
def test_peak_rates_are_the_vendors(kind: str, tflops: int) -> None:
    row = DEVICES[kind]
    peak = row.sm_count * row.flops_per_clock_per_sm * row.max_sm_clock_mhz * 1e6 / 1e12
    # The maximum clock is up to 9 % above the boost clock that data sheets rate with.
    assert 0.99 * tflops <= peak <= 1.1 * tflops


def test_cards_of_one_architecture_are_told_apart() -> None:
    hopper = {kind: row.sm_count for kind, row in DEVICES.items() if row.arch == "sm_90"}
    assert hopper["NVIDIA H100 PCIe"] == 114
    assert hopper["NVIDIA H200"] == hopper["NVIDIA H100 80GB HBM3"] == 132
    assert hopper["NVIDIA H20"] == 78


@pytest.mark.parametrize("name", ["sm_90", "SM_90", "90", "9.0", "sm_90a", " sm_90 "])
def test_names_of_an_architecture(name: str) -> None:
    assert architecture(name) is ARCHITECTURES["sm_90"]


@each_architecture
def test_the_compute_capability_names_the_architecture(row: Architecture) -> None:
    assert architecture(row.compute_capability) is row


@each_architecture
def test_the_reference_row_says_so(row: Architecture) -> None:
    target = reference_target(row.name)
    assert target.reference
    assert dataclasses.replace(target, reference=False) == DEVICES[row.reference_device]


@pytest.mark.parametrize("name", ["sm_75", "7.0", "sm_60", "53"])
def test_below_sm_80_is_one_clear_refusal(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        architecture(name)
    assert str(caught.value).startswith(f"{name} is below sm_80; Mosaic GPU compiles for sm_80 and newer")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "told"), [("sm_91", "did you mean sm_"), ("hopper", "choose from sm_80"), ("", "unknown")]
)
def test_an_unknown_architecture_suggests_one(name: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        architecture(name)
    assert told in str(caught.value)
    assert "sm_90" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["NVIDIA H200", "nvidia h200", "h200", " NVIDIA  H200 "])
def test_names_of_a_device(name: str) -> None:
    assert device_target(name) is DEVICES["NVIDIA H200"]


def test_a_device_is_not_another_of_a_like_name() -> None:
    assert device_target("H200 NVL").device_kind == "NVIDIA H200 NVL"
    with pytest.raises(UsageError, match="did you mean NVIDIA H"):
        device_target("NVIDIA H300")
