"""Dropout bits as a function of the element's place, not of the tiling.

Any implementation, with any block sizes, on any number of devices, draws the
same bit for the same (key, row, column): the counters of one Threefry-2x32
block (Salmon et al. 2011) are the row and the column.
"""

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p


def keep_mask(
    key: jax.Array, row: jax.Array, column: jax.Array, rate: float
) -> jax.Array:
    """True with probability 1 - rate.

    Args:
      key: [..., 2] uint32, broadcast against the counters without its last axis.
      row, column: uint32 counters, broadcast against each other.
      rate: probability of dropping, in [0, 1).
    """
    k0, k1 = key[..., 0], key[..., 1]
    operands = jnp.broadcast_arrays(k0, k1, row, column)
    bits, _ = threefry2x32_p.bind(*operands)
    return bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
