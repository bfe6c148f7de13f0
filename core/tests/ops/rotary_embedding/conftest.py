"""The implementations under test."""

import pytest

from tokumx.ops.rotary_embedding.rotary_embedding import ROTARY_EMBEDDING


@pytest.fixture(params=[i.name for i in ROTARY_EMBEDDING.implementations])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param
