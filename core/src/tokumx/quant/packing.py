"""Two 4-bit integers in a byte, along one axis.

Byte i holds number 2i in its low half and 2i + 1 in its high half, so that an even
part of the axis is a part of the bytes: devices may split it. A product needs no
unpacked copy: x[:, ::2] @ low + x[:, 1::2] @ high.
"""

import jax
import jax.numpy as jnp
from jax import lax


def pack_int4(values: jax.Array, axis: int) -> jax.Array:
    """int8 in [-8, 7] -> uint8 with half the size along `axis`, which is even."""
    low = lax.slice_in_dim(values, 0, None, 2, axis)
    high = lax.slice_in_dim(values, 1, None, 2, axis)
    bits = [x.astype(jnp.uint8) & 15 for x in (low, high)]
    return bits[0] | (bits[1] << 4)


def int4_halves(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The even and the odd numbers along the packed axis, int8."""
    signed = lax.bitcast_convert_type(packed, jnp.int8)
    low = lax.shift_right_arithmetic(lax.shift_left(signed, jnp.int8(4)), jnp.int8(4))
    return low, lax.shift_right_arithmetic(signed, jnp.int8(4))


def unpack_int4(packed: jax.Array, axis: int) -> jax.Array:
    """The inverse of pack_int4."""
    both = jnp.stack(int4_halves(packed), axis + 1)
    shape = list(packed.shape)
    shape[axis] *= 2
    return both.reshape(shape)
