"""Which rows belong to which group.

B problems, M rows, E groups of all devices, G local ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tokumx.contract import Arrays


class Bounds(NamedTuple):
    """The rows [start, end) of each local group, each [B, G] int32 in [0, M]."""

    starts: jax.Array
    ends: jax.Array


def bounds_of(arrays: Arrays) -> Bounds:
    """From group_sizes [B, E] and group_ids [B, G]; both may have B = 1.

    A local group that is none of the E has no rows. Sizes that were not
    checked, and are wrong, never lead out of the M rows.
    """
    sizes, ids = arrays["group_sizes"], arrays["group_ids"]
    rows, total = arrays["lhs"].shape[1], sizes.shape[1]
    ends = jnp.clip(jnp.cumsum(sizes, 1, dtype=jnp.int32), 0, rows)
    ends = jnp.pad(ends, ((0, 0), (1, 0)))  # [B, E + 1]; entry e is e's start
    batch = max(sizes.shape[0], ids.shape[0])
    ends = jnp.broadcast_to(ends, (batch, total + 1))
    ids = jnp.broadcast_to(ids, (batch, ids.shape[1]))
    # Group -1 and before end at 0, group E and beyond begin at the last end.
    first = jnp.take_along_axis(ends, jnp.clip(ids, 0, total), 1)
    last = jnp.take_along_axis(ends, jnp.clip(ids + 1, 0, total), 1)
    return Bounds(first, last)
