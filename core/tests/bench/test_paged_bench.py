"""The paged cases: the plain form is right, and the tables are."""

import jax.numpy as jnp
import numpy as np
import pytest

from tokumx.bench.cli import Choices
from tokumx.bench.paged import PagedShape, paged_benchmark, paged_case
from tokumx.bench.paged_contestants import gather_einsum, tokumx_paged

SHAPE = PagedShape(r=3, context=32, page=8, n=4, k=2, h=8, dtype="float32")


def test_gather_einsum_is_paged_attention():
    arrays = SHAPE.arrays()
    expected = tokumx_paged(arrays, "xla")
    np.testing.assert_allclose(gather_einsum(arrays), expected, atol=2e-6)


def test_paged_arrays_use_every_page_once_and_lengths_that_fit():
    arrays = SHAPE.arrays()
    assert sorted(np.ravel(arrays["page_table"])) == list(range(3 * 4))
    assert (np.asarray(arrays["seq_lens"]) <= 32).all()
    assert (np.asarray(arrays["seq_lens"]) >= 16).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_paged_case_counts_visible_bytes(dtype):
    shape = PagedShape(r=3, context=32, page=8, n=4, k=2, h=8, dtype=dtype)
    visible = 2 * 2 * 8 * int(shape.lengths.sum())
    rows = 2 * 3 * 4 * 8
    item = jnp.dtype(dtype).itemsize
    assert paged_case(shape).bytes_moved == (visible + rows) * item


def test_paged_cases_have_names_of_their_own():
    names = [case.name for case in paged_benchmark(Choices()).cases]
    assert len(names) == len(set(names))
