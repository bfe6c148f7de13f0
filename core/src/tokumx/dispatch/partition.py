"""Runs a kernel that loops over batch and heads where it cannot be split.

A loop over the batch hides from XLA that its steps are independent: vmap
would turn it into a masked loop, and the SPMD partitioner would gather every
operand on every device. `localized` gives such a function the missing rules:

  vmap          the new axis is folded into the batch, or run one by one where
                the operands have no batch axis,
  jit + Auto    custom_partitioning: each device runs its own part,
  Explicit mesh shard_map with specs derived from the operands,
  shard_map     nothing to do: arrays are local already.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tokumx.pallas_lib.varying import vary_over, varying_axes

Function = Callable[..., tuple[jax.Array, ...]]
MeshAxes = tuple[str, ...]


@dataclass(frozen=True)
class Axes:
    """Axis letters of a function's operands and results; see OpSpec.axes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sharded: Mapping[str, str]
    # Operands whose gradient is a result: under vmap each example needs its
    # own, so a batch of 1 is repeated before it is folded.
    repeated: tuple[bool, ...]

    def __hash__(self) -> int:
        return id(self)

    def group(self, letter: str) -> str | None:
        """The sharded axis that `letter` is split together with."""
        for leader, members in self.sharded.items():
            if letter in members:
                return leader
        return None


def partitionable(fn: Function, axes: Axes) -> Function:
    """`fn` on an Explicit mesh; otherwise XLA partitions it by itself."""

    def run(*args: jax.Array) -> tuple[jax.Array, ...]:
        if AxisType.Explicit in _axis_types(args):
            return _in_shard_map(fn, axes, args)
        return fn(*args)

    return run


def localized(fn: Function, axes: Axes) -> Function:
    """`fn` with rules for vmap and for every kind of sharding."""

    def run(*args: jax.Array) -> tuple[jax.Array, ...]:
        kinds = _axis_types(args)
        if kinds == {AxisType.Manual}:
            # A custom call's results are taken for equal on all devices.
            axes_of_args = frozenset().union(*map(varying_axes, args))
            return tuple(vary_over(y, axes_of_args) for y in fn(*args))
        if AxisType.Explicit in kinds:
            return _in_shard_map(fn, axes, args)
        return _partitioned(fn, axes, args)(*args)

    if not all(letters.startswith("b") for letters in axes.inputs):
        return sequential_vmap(run)
    folded = custom_vmap(run)
    folded.def_vmap(functools.partial(_fold_batch, run, axes))
    return folded


def _axis_types(args: Sequence[jax.Array]) -> set[AxisType]:
    return set(jax.typeof(args[0]).sharding.mesh.axis_types)


def like_primal(gradient: jax.Array, primal: jax.Array) -> jax.Array:
    """The gradient, sharded as its primal on an Explicit mesh."""
    sharding = jax.typeof(primal).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return gradient
    return jax.sharding.reshard(gradient, sharding)


# vmap


def _fold_batch(
    run: Function,
    axes: Axes,
    axis_size: int,
    in_batched: Sequence[bool],
    *args: jax.Array,
) -> tuple[tuple[jax.Array, ...], tuple[bool, ...]]:
    unbatched = [
        jax.ShapeDtypeStruct(x.shape[1:] if b else x.shape, x.dtype)
        for x, b in zip(args, in_batched, strict=True)
    ]
    batch = max(x.shape[0] for x in unbatched)
    folded = [
        _fold_one(x, is_batched, axis_size, batch, repeat)
        for x, is_batched, repeat in zip(args, in_batched, axes.repeated, strict=True)
    ]
    results = localized(run, axes)(*folded)
    expected = jax.eval_shape(run, *unbatched)
    unfolded = tuple(
        _unfold_one(y, axis_size, batch, e.shape[0])
        for y, e in zip(results, expected, strict=True)
    )
    return unfolded, (True,) * len(unfolded)


def _fold_one(
    x: jax.Array, is_batched: bool, axis_size: int, batch: int, repeat: bool
) -> jax.Array:
    rows = x.shape[1] if is_batched else x.shape[0]
    if not is_batched:
        if rows == 1 and not repeat:
            return x
        x = jnp.broadcast_to(x[None], (axis_size, *x.shape))
    if rows == 1 and batch > 1:
        x = jnp.broadcast_to(x, (axis_size, batch, *x.shape[2:]))
    return _merge_leading(x)


def _unfold_one(y: jax.Array, axis_size: int, batch: int, rows: int) -> jax.Array:
    y = _split_leading(y, axis_size, batch)
    return y.sum(1, keepdims=True) if rows == 1 and batch > 1 else y


def _merge_leading(x: jax.Array) -> jax.Array:
    sizes = (x.shape[0] * x.shape[1], *x.shape[2:])
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return x.reshape(sizes)
    outer, inner, *rest = sharding.spec
    spec = PartitionSpec(inner if outer is None else outer, *rest)
    return lax.reshape(x, sizes, out_sharding=NamedSharding(sharding.mesh, spec))


def _split_leading(y: jax.Array, outer: int, inner: int) -> jax.Array:
    sizes = (outer, inner, *y.shape[1:])
    sharding = jax.typeof(y).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return y.reshape(sizes)
    first, *rest = sharding.spec
    names = first if isinstance(first, tuple) else () if first is None else (first,)
    parts = _product(sharding.mesh.shape[a] for a in names)
    if outer % parts == 0:
        leading = (first, None)
    else:
        leading = (None, first if inner % parts == 0 else None)
    spec = PartitionSpec(*leading, *rest)
    return lax.reshape(y, sizes, out_sharding=NamedSharding(sharding.mesh, spec))


# Sharding


@dataclass(frozen=True)
class _Split:
    """Mesh axes that split each sharded axis, and the specs that follow."""

    mesh_axes: Mapping[str, MeshAxes]
    inputs: tuple[PartitionSpec, ...]
    outputs: tuple[PartitionSpec, ...]
    # For each result, mesh axes to sum it over: a gradient of an operand that
    # is broadcast along a split axis is a partial sum on each device.
    sums: tuple[MeshAxes, ...]


def _split(
    axes: Axes,
    mesh_shape: Mapping[str, int],
    specs: Sequence[PartitionSpec],
    in_shapes: Sequence[Sequence[int]],
    out_shapes: Sequence[Sequence[int]],
) -> _Split:
    mesh_axes: dict[str, MeshAxes] = {}
    for leader in axes.sharded:
        wanted = _wanted(axes, leader, specs)
        taken = set(itertools.chain(*mesh_axes.values()))
        parts = _product(mesh_shape[a] for a in wanted)
        sizes = [
            d
            for letters, shape in zip(axes.inputs, in_shapes, strict=True)
            for letter, d in zip(letters.split(), shape, strict=True)
            if axes.group(letter) == leader and d != 1
        ]
        if taken & set(wanted) or not sizes or any(d % parts for d in sizes):
            wanted = ()
        mesh_axes[leader] = wanted
    spec = functools.partial(_spec, axes, mesh_axes)
    return _Split(
        mesh_axes,
        tuple(map(spec, axes.inputs, in_shapes)),
        tuple(map(spec, axes.outputs, out_shapes)),
        tuple(
            tuple(a for leader in axes.sharded for a in mesh_axes[leader]
                  if not _splits(axes, leader, letters, shape))
            for letters, shape in zip(axes.outputs, out_shapes, strict=True)
        ),
    )  # fmt: skip


def _wanted(axes: Axes, leader: str, specs: Sequence[PartitionSpec]) -> MeshAxes:
    """How the first operand that is split along the axis splits it."""
    for letters, spec in zip(axes.inputs, specs, strict=True):
        for letter, entry in zip(letters.split(), spec, strict=False):
            if axes.group(letter) == leader and entry is not None:
                return entry if isinstance(entry, tuple) else (entry,)
    return ()


def _splits(axes: Axes, leader: str, letters: str, shape: Sequence[int]) -> bool:
    return any(
        axes.group(letter) == leader and d != 1
        for letter, d in zip(letters.split(), shape, strict=True)
    )


def _spec(
    axes: Axes,
    mesh_axes: Mapping[str, MeshAxes],
    letters: str,
    shape: Sequence[int],
) -> PartitionSpec:
    entries = []
    for letter, d in zip(letters.split(), shape, strict=True):
        leader = axes.group(letter)
        names = mesh_axes[leader] if leader is not None and d != 1 else ()
        entries.append(names or None)
    return PartitionSpec(*entries)


def _product(values: Any) -> int:
    return functools.reduce(lambda a, b: a * b, values, 1)


def _summed(fn: Function, split: _Split) -> Function:
    def run(*args: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            lax.psum(y, names) if names else y
            for y, names in zip(fn(*args), split.sums, strict=True)
        )

    return run


def _in_shard_map(
    fn: Function, axes: Axes, args: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    mesh = jax.typeof(args[0]).sharding.mesh
    results = jax.eval_shape(
        fn, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args)
    )
    split = _split(
        axes,
        dict(mesh.shape),
        [jax.typeof(x).sharding.spec for x in args],
        [x.shape for x in args],
        [y.shape for y in results],
    )
    args = [
        jax.sharding.reshard(x, NamedSharding(mesh, s))
        for x, s in zip(args, split.inputs, strict=True)
    ]
    return jax.shard_map(
        _summed(fn, split),
        mesh=mesh,
        in_specs=split.inputs,
        out_specs=split.outputs,
        check_vma=False,
    )(*args)


def _partitioned(fn: Function, axes: Axes, args: Sequence[jax.Array]) -> Function:
    """`fn` with a rule for the SPMD partitioner (Auto meshes)."""
    wrapped = custom_partitioning(fn)

    def partition(mesh, arg_infos, result_infos):
        split = _split(
            axes,
            dict(mesh.shape),
            [x.sharding.spec for x in arg_infos],
            [x.shape for x in arg_infos],
            [y.shape for y in result_infos],
        )
        return (
            mesh,
            _summed(fn, split),
            tuple(NamedSharding(mesh, s) for s in split.outputs),
            tuple(NamedSharding(mesh, s) for s in split.inputs),
        )

    results = jax.eval_shape(
        fn, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args)
    )
    wrapped.def_partition(
        partition=partition,
        sharding_rule=_sharding_rule(axes, args, results),
    )
    return wrapped


def _sharding_rule(axes: Axes, args: Sequence[Any], results: Sequence[Any]) -> str:
    """The propagation rule for Shardy: only batch-like axes are shared.

    Every other dimension gets a name of its own, so that a sharding of it
    does not spread.
    """
    unique = (f"u{i}" for i in itertools.count())

    def side(all_letters: Sequence[str], arrays: Sequence[Any]) -> str:
        return ", ".join(
            " ".join(
                letter if axes.group(letter) is not None and d != 1 else next(unique)
                for letter, d in zip(letters.split(), x.shape, strict=True)
            )
            for letters, x in zip(all_letters, arrays, strict=True)
        )

    return f"{side(axes.inputs, args)} -> {side(axes.outputs, results)}"
