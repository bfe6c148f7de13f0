"""The implementations under test."""

import pytest

from tokumx.ops.quantized_matmul.quantized_matmul import QUANTIZED_MATMUL


@pytest.fixture(params=[i.name for i in QUANTIZED_MATMUL.implementations])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param
