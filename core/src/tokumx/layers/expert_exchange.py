"""How tokens reach experts that lie on other devices, and their results return.

P devices along the axis, T tokens on each, D width, K chosen by each token,
L = E / P experts on each device.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import current_device
from tokumx.layers.experts import Experts
from tokumx.ops.moe_routing import moe_permute, moe_unpermute
from tokumx.pallas_lib.varying import filled

# (tokens [T, D], experts [T, K], weights [T, K], experts, axis) -> [T, D]
Exchange = Callable[[jax.Array, jax.Array, jax.Array, Experts, str], jax.Array]


def by_all_gather(
    tokens: jax.Array,
    chosen: jax.Array,
    weights: jax.Array,
    experts: Experts,
    axis_name: str,
) -> jax.Array:
    """Every device sees all tokens, and adds what its own experts make of them."""
    tokens, chosen, weights = (
        lax.all_gather(a, axis_name, tiled=True) for a in (tokens, chosen, weights)
    )
    devices = lax.axis_size(axis_name)
    permuted = moe_permute(tokens, chosen, devices * experts.count)
    first = lax.axis_index(axis_name) * experts.count
    rows = experts(permuted.rows, permuted.group_sizes, first)
    part = moe_unpermute(rows, permuted.permutation, weights)  # [P * T, D]
    wide = part.astype(jnp.promote_types(part.dtype, jnp.float32))
    out = lax.psum_scatter(wide, axis_name, tiled=True)
    return out.astype(part.dtype)


def by_ragged_all_to_all(
    tokens: jax.Array,
    chosen: jax.Array,
    weights: jax.Array,
    experts: Experts,
    axis_name: str,
) -> jax.Array:
    """Each row travels to the device of its expert, and its result back."""
    devices = lax.axis_size(axis_name)
    permuted = moe_permute(tokens, chosen, devices * experts.count)
    sizes = permuted.group_sizes.reshape(devices, experts.count)
    sizes = lax.all_gather(sizes, axis_name)  # [from, to, L]
    there, back = _routes(sizes.sum(-1), lax.axis_index(axis_name))
    count = permuted.rows.shape[0]
    room = devices * count  # all rows may come here
    received = _send(axis_name, _Rows(count, room), permuted.rows, there, back)
    local = _local_experts(sizes[:, lax.axis_index(axis_name)], room)
    # The rows past the last one that came are a group of their own, without an
    # expert.
    sorted_here = moe_permute(received, local[:, None], experts.count + 1)
    rows = experts(sorted_here.rows, sorted_here.group_sizes[:-1])
    ones = filled((room, 1), 1, jnp.float32, rows)
    rows = moe_unpermute(rows, sorted_here.permutation, ones)
    rows = _send(axis_name, _Rows(room, count), rows, back, there)
    return moe_unpermute(rows, permuted.permutation, weights)


class _Route(NamedTuple):
    """Arguments of ragged_all_to_all, one entry a device, each [P] int32.

    Attributes:
      input_offsets, send_sizes: which of the rows here go to it.
      output_offsets: where they begin over there.
      recv_sizes: how many come from it.
    """

    input_offsets: jax.Array
    send_sizes: jax.Array
    output_offsets: jax.Array
    recv_sizes: jax.Array


def _routes(counts: jax.Array, here: jax.Array) -> tuple[_Route, _Route]:
    """There and back, from counts [from, to]: rows that go from one to another.

    A device's rows are sorted by where they go, those that it receives by where
    they come from.
    """
    starts = jnp.cumsum(counts, 1) - counts  # on the device they come from
    places = jnp.cumsum(counts, 0) - counts  # on the device they go to
    there = _Route(starts[here], counts[here], places[here], counts[:, here])
    back = _Route(places[:, here], counts[:, here], starts[:, here], counts[here])
    return there, back


class _Rows(NamedTuple):
    """How many there are, and for how many there is room where they go."""

    here: int
    room: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _send(
    axis_name: str, count: _Rows, rows: jax.Array, route: _Route, back: _Route
) -> jax.Array:
    """[room, D]; zeros past the last row that comes. Gradients go the way back."""
    del back
    empty = filled((count.room, rows.shape[1]), 0, rows.dtype, rows)
    return lax.ragged_all_to_all(rows, empty, *route, axis_name=axis_name)


def _send_forward(
    axis_name: str, count: _Rows, rows: jax.Array, route: _Route, back: _Route
) -> Any:
    return _send(axis_name, count, rows, route, back), (route, back)


def _send_backward(
    axis_name: str, count: _Rows, routes: Any, cotangent: jax.Array
) -> Any:
    route, back = routes
    returned = _Rows(here=count.room, room=count.here)
    return _send(axis_name, returned, cotangent, back, route), None, None


_send.defvjp(_send_forward, _send_backward)


def _local_experts(sizes: jax.Array, room: int) -> jax.Array:
    """[room] int32: the expert of each received row, L past the last one.

    Args:
      sizes: [from, L], the rows that came from each device for each expert; the
        rows lie in this order.
      room: rows that could come.
    """
    count = sizes.shape[1]
    ends = jnp.cumsum(sizes.reshape(-1))  # [P * L]
    segment = jnp.searchsorted(ends, lax.iota(ends.dtype, room), side="right")
    is_row = segment < ends.shape[0]
    return jnp.where(is_row, segment % count, count).astype(jnp.int32)


EXCHANGES: dict[str, Exchange] = {
    "all_gather": by_all_gather,
    "ragged_all_to_all": by_ragged_all_to_all,
}


def chosen_exchange(name: str | None) -> Exchange:
    """The exchange of that name, or the best one of the backend."""
    if name is None:
        is_cpu = current_device().platform == "cpu"
        name = "all_gather" if is_cpu else "ragged_all_to_all"
    return EXCHANGES[name]
