"""Runs a decided call: one jitted function for each decision."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from tokumx.contract import (
    CallSpec,
    Config,
    Configs,
    Direction,
    Implementation,
    OpSpec,
    current_device,
)
from tokumx.contract.call_spec import OptionValue
from tokumx.dispatch.decision import digest_of, remember
from tokumx.dispatch.exportable import Function, exportable
from tokumx.dispatch.partition import Axes, like_primal, localized, partitionable
from tokumx.dispatch.select import Preference, decide
from tokumx.pallas_lib.varying import filled, vary_over, varying_axes

NAME_PREFIX = "tokumx_"
BACKWARD_SUFFIX = "_backward"


def call_op(
    op: OpSpec,
    arrays: Mapping[str, Any],
    options: Mapping[str, OptionValue],
    *,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> dict[str, jax.Array]:
    """Decides for the call and runs it.

    Args:
      arrays: by name; entries that are None are absent.
      options: static, JSON values.
      implementation, config: see `decide`.

    Returns:
      The op's outputs by name.
    """
    arrays = {name: x for name, x in arrays.items() if x is not None}
    call = CallSpec.of(op.name, arrays, options)
    decision = decide(op, call, implementation, config)
    remember(decision)
    run = program(op, call, decision.implementation, decision.configs)
    return run(_align_varying(arrays))


@functools.lru_cache(maxsize=4096)
def program(op: OpSpec, call: CallSpec, implementation: str, configs: Configs) -> Any:
    """The jitted function of a decision, from arrays to outputs by name.

    Its name holds the decision's digest, so that a jaxpr, an HLO dump or a
    profile says which decision it came from.
    """
    chosen = op.implementation(implementation)
    name = f"{NAME_PREFIX}{op.name}_{digest_of(call, implementation, configs)}"
    config = configs.resolved("forward")
    forward = _with_names(op, forward_function(op, chosen, call, config))
    if chosen.backward is None:
        return _named(name, forward)
    inference = forward
    if chosen.inference is not None:
        alone = replace(chosen, forward=chosen.inference)
        inference = _with_names(op, forward_function(op, alone, call, config))
    backward = backward_function(op, chosen, call, configs.resolved("backward"))
    backward = _named(name + BACKWARD_SUFFIX, backward)
    return _named(name, _with_vjp(op, inference, forward, backward))


def _named(name: str, fn: Any) -> Any:
    fn.__name__ = fn.__qualname__ = name
    return jax.jit(fn)


def forward_function(
    op: OpSpec, chosen: Implementation, call: CallSpec, config: Config
) -> Any:
    """(arrays) -> outputs, both by name; not jitted."""
    names = tuple(call)
    flat = _flat_forward(op, chosen, call, config)
    if chosen.stand_in is not None:
        other = _heuristic(chosen.stand_in, call, "forward")
        flat = exportable(flat, _flat_forward(op, chosen.stand_in, call, other))
    letters, sharded = op.letters(call)
    axes = Axes(
        inputs=tuple(letters[n] for n in names),
        outputs=tuple(letters[n] for n in op.outputs),
        sharded=sharded,
        repeated=(False,) * len(names),
    )
    runner = (localized if chosen.local else partitionable)(flat, axes)

    def forward(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        results = runner(*(arrays[n] for n in names))
        return dict(zip(op.outputs, results, strict=True))

    return forward


def _flat_forward(
    op: OpSpec, chosen: Implementation, call: CallSpec, config: Config
) -> Function:
    names = tuple(call)

    def flat(*values: jax.Array) -> tuple[jax.Array, ...]:
        outputs = chosen.forward(dict(zip(names, values, strict=True)), call, config)
        return tuple(outputs[n] for n in op.outputs)

    return flat


def _heuristic(chosen: Implementation, call: CallSpec, direction: Direction) -> Config:
    return chosen.heuristic_config(call, current_device(), direction)


def backward_function(
    op: OpSpec, chosen: Implementation, call: CallSpec, config: Config
) -> Any:
    """(arrays, outputs, cotangents) -> gradients, all by name; not jitted.

    The implementation must have a backward of its own.
    """
    names = tuple(call)
    wanted = _wanted(op, call)
    operands = names + op.outputs + op.outputs
    flat = _flat_backward(op, chosen, call, config)
    if chosen.stand_in is not None:
        other = _heuristic(chosen.stand_in, call, "backward")
        flat = exportable(flat, _flat_backward(op, chosen.stand_in, call, other))
    letters, sharded = op.letters(call)
    axes = Axes(
        inputs=tuple(letters[n] for n in operands),
        outputs=tuple(letters[n] for n in wanted),
        sharded=sharded,
        repeated=tuple(n in wanted for n in operands),
    )
    runner = (localized if chosen.local else partitionable)(flat, axes)

    def backward(
        arrays: Mapping[str, jax.Array],
        outputs: Mapping[str, jax.Array],
        cotangents: Mapping[str, jax.Array],
    ) -> dict[str, jax.Array]:
        sources = (
            *(arrays[n] for n in names),
            *(outputs[n] for n in op.outputs),
            *(cotangents[n] for n in op.outputs),
        )
        return dict(zip(wanted, runner(*sources), strict=True))

    return backward


def _wanted(op: OpSpec, call: CallSpec) -> tuple[str, ...]:
    """The arrays of the call that have gradients."""
    return tuple(n for n in call if n in op.differentiable)


def _flat_backward(
    op: OpSpec, chosen: Implementation, call: CallSpec, config: Config
) -> Function:
    own_backward = chosen.backward
    assert own_backward is not None, f"{chosen.name} has no backward"
    names, wanted = tuple(call), _wanted(op, call)

    def flat(*values: jax.Array) -> tuple[jax.Array, ...]:
        arrays = dict(zip(names, values[: len(names)], strict=True))
        rest = values[len(names) :]
        outputs = dict(zip(op.outputs, rest[: len(op.outputs)], strict=True))
        cotangents = dict(zip(op.outputs, rest[len(op.outputs) :], strict=True))
        gradients = own_backward(arrays, outputs, cotangents, call, config)
        return tuple(gradients[n].astype(arrays[n].dtype) for n in wanted)

    return flat


def _with_names(op: OpSpec, forward: Any) -> Any:
    """Names the outputs for jax.checkpoint policies; also marks a forward pass
    in a jaxpr, where a transposed one bears the same name."""

    def named(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return checkpoint_name(forward(arrays), residual_name(op.name))

    return named


def residual_name(op: str) -> str:
    return f"{NAME_PREFIX}{op}"


def _with_vjp(op: OpSpec, inference: Any, forward: Any, backward: Any) -> Any:
    def primal(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return inference(arrays)

    def fwd(arrays: Mapping[str, jax.Array]) -> Any:
        outputs = forward(arrays)
        return outputs, (arrays, outputs)

    def bwd(residuals: Any, cotangents: Any) -> Any:
        arrays, outputs = residuals
        gradients = backward(arrays, outputs, cotangents)
        return (
            {
                n: like_primal(gradients[n], x) if n in gradients else _no_gradient(x)
                for n, x in arrays.items()
            },
        )

    differentiable = jax.custom_vjp(primal)
    differentiable.defvjp(fwd, bwd)

    def run(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return differentiable(dict(arrays))

    return run


def _no_gradient(x: jax.Array) -> Any:
    """Of an array that the op does not differentiate; it may be floating."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return like_primal(filled(x.shape, 0, x.dtype, x), x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _align_varying(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Inside shard_map, makes all operands vary over the same mesh axes.

    jax then sums gradients of the replicated ones, and loop carries made
    from one operand fit those made from another.
    """
    union = frozenset().union(*map(varying_axes, arrays.values()))
    return {n: vary_over(x, union) for n, x in arrays.items()}
