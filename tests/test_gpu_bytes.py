"""The kernels that benchmarks/gpu_bytes.py reads from a compiled program."""

from benchmarks.gpu_bytes import read_kernels

# The product's scratch memory has 999 bytes. Two fusions differ only in names.
PROGRAM = """\
HloModule jit_train_step, is_scheduled=true

%fused_add.1 (param_0: f32[8,4], param_1: bf16[8,4]) -> f32[8,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %param_1 = bf16[8,4]{1,0} parameter(1)
  %convert.1 = f32[8,4]{1,0} convert(%param_1), metadata={op_name="first"}
  ROOT %add.1 = f32[8,4]{1,0} add(%param_0, %convert.1)
}

%fused_add.2 (param_0.2: f32[8,4], param_1.2: bf16[8,4]) -> f32[8,4] {
  %param_0.2 = f32[8,4]{1,0} parameter(0)
  %param_1.2 = bf16[8,4]{1,0} parameter(1)
  %convert.2 = f32[8,4]{1,0} convert(%param_1.2), metadata={op_name="second"}
  ROOT %add.2 = f32[8,4]{1,0} add(%param_0.2, %convert.2)
}

ENTRY %main.9 (x.1: f32[8,4], w.1: bf16[4,4], key.1: s32[]) -> f32[8,4] {
  %x.1 = f32[8,4]{1,0} parameter(0), metadata={op_name="x"}
  %w.1 = bf16[4,4]{1,0} parameter(1), metadata={op_name="w"}
  %key.1 = s32[] parameter(2)
  %bitcast.1 = bf16[16]{0} bitcast(%w.1)
  %cublas.1 = (bf16[8,4]{1,0}, s8[999]{0}) custom-call(%x.1, %w.1, /*index=2*/%bitcast.1), \
custom_call_target="__cublas$lt$matmul", metadata={op_name="layer_0/dot"}
  %get-tuple-element.1 = bf16[8,4]{1,0} get-tuple-element(%cublas.1), index=0
  %loop.1 = f32[8,4]{1,0} fusion(%x.1, %get-tuple-element.1), kind=kLoop, calls=%fused_add.1, \
metadata={op_name="layer_0/add"}
  %pallas.1 = (bf16[8,4]{1,0}, f32[8]{0}) custom-call(%get-tuple-element.1, %key.1), \
custom_call_target="__gpu$xla.gpu.triton"
  %get-tuple-element.2 = bf16[8,4]{1,0} get-tuple-element(%pallas.1), index=0
  %get-tuple-element.3 = f32[8]{0} get-tuple-element(%pallas.1), index=1
  %reduce.1 = f32[] custom-call(%get-tuple-element.2, %get-tuple-element.3), \
custom_call_target="other"
  ROOT %loop.2 = f32[8,4]{1,0} fusion(%loop.1, %get-tuple-element.2), kind=kLoop, \
calls=%fused_add.2, metadata={op_name="layer_1/add"}
}
"""


def test_a_kernel_reads_each_array_once_and_writes_its_outputs():
    """Arrays are float32 or bfloat16 [8, 4], of 128 and 64 bytes; the weights have 32 bytes."""
    kernels = read_kernels(PROGRAM)
    assert [tuple(kernel.values())[:5] for kernel in kernels] == [
        ("cublas.1", "product", "layer_0/dot", 128 + 32, 64),
        ("loop.1", "other", "layer_0/add", 128 + 64, 128),
        ("pallas.1", "Pallas", "", 64 + 4, 64 + 32),
        ("reduce.1", "other", "", 64 + 32, 4),
        ("loop.2", "other", "layer_1/add", 128 + 64, 128),
    ]
    assert kernels[2]["arrays"] == "bf16[8,4] f32[8]"
    assert kernels[1]["body"] == kernels[4]["body"]
    assert len({kernel["body"] for kernel in kernels}) == 4
