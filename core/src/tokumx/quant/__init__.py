"""Arrays stored in few bits, with the scales that bring them back."""

from tokumx.quant.qarray import QTYPES, QArray
from tokumx.quant.quantize import quantize

__all__ = ["QTYPES", "QArray", "quantize"]
