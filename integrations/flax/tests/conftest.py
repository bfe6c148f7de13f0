"""What the tests of this adapter share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def assert_close():
    """Two trees agree to 1e-5 of the largest entry of each expected leaf."""

    def check(actual, expected, relative=1e-5):
        actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
        assert len(actual) == len(expected) > 0
        for a, e in zip(actual, expected, strict=True):
            assert a.shape == e.shape
            assert a.dtype == e.dtype
            a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
            np.testing.assert_allclose(
                a, e, rtol=0, atol=relative * max(np.abs(e).max(), 1e-30)
            )

    return check


@pytest.fixture
def runs_tokumx():
    """Whether a function's trace holds tokumx's attention."""

    def check(fn, *args):
        return "tokumx_dot_product_attention" in str(jax.make_jaxpr(fn)(*args))

    return check


@pytest.fixture
def qkv():
    """Makes query, key and value with any batch dimensions."""

    def make(batch=(2,), t=33, s=33, n=4, k=4, h=16, d=16, dtype=jnp.float32):
        keys = jax.random.split(jax.random.key(0), 3)
        shapes = ((*batch, t, n, h), (*batch, s, k, h), (*batch, s, k, d))
        return tuple(
            jax.random.normal(key, shape, dtype)
            for key, shape in zip(keys, shapes, strict=True)
        )

    return make
