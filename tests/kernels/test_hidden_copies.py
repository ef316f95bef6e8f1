"""What moves data around the kernel is seen in the optimised program; the lines are as XLA prints them."""

import pytest

from tuner.compiling import hidden_copies

KERNEL = '%custom-call.1 = f32[512,512]{1,0} custom-call(%x.1), custom_call_target="mosaic_gpu_v2"'


@pytest.mark.parametrize(
    "line",
    [
        "ROOT %copy.1 = f32[512,512]{1,0} copy(%x.1)",
        "%copy.2 = bf16[512,512]{0,1:T(8,128)} copy(%x.1)",
        "ROOT %loop_convert_fusion = u8[512,512]{1,0} fusion(%x.1), kind=kLoop, calls=%fused_convert",
        "%copy-start.1 = (f32[512,512]{1,0}, f32[512,512]{1,0}, u32[]) copy-start(%x.1)",
        "ROOT %transpose.1.1 = f32[512,512]{1,0} transpose(%param_0), dimensions={1,0}",
        "ROOT %pad.0.1 = f32[520,520]{1,0} pad(%param_0, %constant_3), padding=0_8x0_8",
        "ROOT %slice.1.1 = f32[504,504]{1,0} slice(%param_0), slice={[8:512], [8:512]}",
        "ROOT %dynamic-update-slice.2.1 = f32[512,512]{1,0} dynamic-update-slice(%param_0, %a, %b, %c)",
    ],
    ids=lambda line: line.split(" = ")[0].removeprefix("ROOT "),
)
def test_what_moves_data_is_seen(line: str) -> None:
    assert hidden_copies(f"HloModule jit_program\n\n  {KERNEL}\n  {line}\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        KERNEL,
        '%x.1 = f32[512,512]{1,0} parameter(0), metadata={op_name="copy(x)"}',
        "%tuple = (f32[512,512]{1,0}, f32[512,512]{1,0}) tuple(%x.1, %y)",
        "%bitcast.1 = f32[262144]{0} bitcast(%x.1)",
    ],
    ids=lambda line: line.split(" = ")[0],
)
def test_what_does_not_is_not(line: str) -> None:
    assert hidden_copies(f"HloModule jit_program\n\n  {line}\n") == []
