"""Products with quantized weights."""

from tokumx.ops.quantized_matmul.quantized_matmul import quantized_matmul

__all__ = ["quantized_matmul"]
