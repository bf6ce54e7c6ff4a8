"""Sophgo's compiler tpu-mlir and its W4BF16 path: constraints, layout, packing, arithmetic.

The words of this package: a Linear is `tpu.A16MatMul`; P (`NPU_NUM`) is the number of lanes that
output channels are dealt out to; g is `q_group_size`; scale and zero point are `[N, K/g]`.
"""
