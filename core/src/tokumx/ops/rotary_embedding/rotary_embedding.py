"""Public API of the rotary embedding, and its OpSpec."""

from typing import Any

import jax

from tokumx.contract import (
    CallSpec,
    Config,
    Configs,
    DeviceSpec,
    Implementation,
    OpSpec,
    Ranking,
)
from tokumx.dispatch import Preference, call_op
from tokumx.ops.rotary_embedding import reference
from tokumx.ops.rotary_embedding.arguments import Checked, with_one_batch
from tokumx.ops.rotary_embedding.inputs import examples, make_arrays
from tokumx.ops.rotary_embedding.scaling import OP, Scaling
from tokumx.ops.rotary_embedding.tables import RotaryTables

ArrayLike = Any


def rotary_embedding(
    query: ArrayLike,
    key: ArrayLike | None = None,
    *,
    positions: ArrayLike | None = None,
    tables: RotaryTables | tuple[ArrayLike, ArrayLike] | None = None,
    rotary_dim: int | None = None,
    theta: float | None = None,
    scaling: Scaling | None = None,
    frequencies: ArrayLike | None = None,
    interleaved: bool = False,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Turns pairs of a head's numbers by an angle that grows with the position.

    With a = positions[..., t] * frequencies[i], and (x, y) the pair i of a head:
    (x, y) -> (x * cos(a) - y * sin(a), y * cos(a) + x * sin(a))

    Args:
      query: [..., T, N, H]; f32, bf16, f16 or f64.
      key: [..., T, K, H], as query; then both are rotated, and both returned.
      positions: [T], or [..., T] with leading axes of query's sizes or 1; integers,
        or floating where they are interpolated. None means 0, 1, 2, ...
      tables: of tokumx.rotary_tables, or a pair of cos and sin [..., T, R / 2], in
        place of positions, rotary_dim, theta, scaling and frequencies: a model
        computes them once for all layers.
      rotary_dim: R, even: only the first R numbers of a head are rotated, the rest
        are passed on. None means H.
      theta: frequencies are theta ** (-2i / R), radians a position; None: 10,000.
      scaling: LinearScaling, Llama3Scaling or YarnScaling, for long contexts.
      frequencies: [R / 2] floating, in place of theta and scaling.
      interleaved: pair i is the numbers 2i and 2i + 1 (GPT-J, DeepSeek); else i and
        i + R / 2 (Llama, NeoX).
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      query rotated, of its shape and dtype, rounded once from f32 (f64 for f64);
      with key (query, key).

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: for the backward only cosines and sines are kept, [..., T, R / 2] each.
    Gradients: query and key, turned back; forward and reverse mode, any order.
    Angles are f32 (f64 for f64): see rotary_tables.
    Source: Su et al. 2021, eq. 15 and 34, arXiv:2104.09864.
    """
    checked = Checked(query, key)
    how = {"theta": theta, "scaling": scaling, "frequencies": frequencies}
    found = checked.tables(tables, positions, rotary_dim, how)

    def rotated(x: jax.Array) -> jax.Array:
        arrays = {"x": with_one_batch(x), "cos": found.cos, "sin": found.sin}
        options = {"interleaved": bool(interleaved)}
        return call_op(
            ROTARY_EMBEDDING,
            arrays,
            options,
            implementation=implementation,
            config=config,
        )["out"].reshape(x.shape)

    if checked.key is None:
        return rotated(checked.query)
    # Two calls: devices split the heads of queries and of keys differently.
    return rotated(checked.query), rotated(checked.key)


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Measured on a CPU, see README.md."""
    del call, device
    return [("xla", "one pass over the heads")]


ROTARY_EMBEDDING = OpSpec(
    name=OP,
    axes={"x": "b t n h", "cos": "b t r", "sin": "b t r", "out": "b t n h"},
    outputs=("out",),
    graded_outputs=("out",),
    sharded_axes={"b": "b", "t": "t", "n": "n"},
    differentiable=("x",),
    implementations=(Implementation.of_module("xla", reference),),
    rank=_rank,
    make_arrays=make_arrays,
    examples=examples,
)
