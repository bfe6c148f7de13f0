"""Who computes the loss of a language model's head: tokumx, and its peers."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Contestant,
    InProcess,
    InTorch,
)
from tokumx.ops.linear_softmax_cross_entropy import linear_softmax_cross_entropy
from tokumx.ops.linear_softmax_cross_entropy.shapes import HeadShape

PLAIN, TOKAMAX, BLOCKED = "plain XLA", "tokamax", "xla_blocked"
TORCH, TORCH_COMPILED = "torch", "torch compiled"
_IN_TORCH = {TORCH: "cross_entropy", TORCH_COMPILED: "cross_entropy_compiled"}
_SLOW_TORCH_BF16 = "bf16 is emulated on a CPU without AVX-512: minutes a case"
_IGNORED = -100


def tokumx_loss(
    arrays: Arrays, shape: HeadShape, implementation: str | None = None
) -> jax.Array:
    """The public function."""
    return linear_softmax_cross_entropy(
        arrays["x"],
        arrays["weight"],
        arrays["labels"],
        logits_soft_cap=shape.logits_soft_cap,
        weight_layout=shape.weight_layout,
        implementation=implementation,
    )


def plain_loss(arrays: Arrays, shape: HeadShape) -> jax.Array:
    """As a training script writes it: logits, then log_softmax in f32."""
    product = f"nd,{shape.weight_layout}->nv"
    logits = jnp.einsum(product, arrays["x"], arrays["weight"])
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if shape.logits_soft_cap is not None:
        logits = shape.logits_soft_cap * jnp.tanh(logits / shape.logits_soft_cap)
    labels = arrays["labels"]
    is_counted = labels != _IGNORED
    index = jnp.where(is_counted, labels, 0)[:, None]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), index, 1)[:, 0]
    return -jnp.where(is_counted, log_probs, 0).sum() / is_counted.sum()


def _tokamax_loss(arrays: Arrays, shape: HeadShape) -> jax.Array:
    """Theirs counts every token; those to ignore get a weight by hand."""
    import tokamax  # only where it takes part

    labels = arrays["labels"]
    is_counted = labels != _IGNORED
    weight = arrays["weight"]
    losses = tokamax.linear_softmax_cross_entropy_loss(
        arrays["x"],
        jnp.where(is_counted, labels, 0),
        weight if shape.weight_layout == "dv" else weight.T,
        reduction="none",
    )
    return jnp.where(is_counted, losses, 0).sum() / is_counted.sum()


def _tokamax(shape: HeadShape) -> Contestant:
    if shape.logits_soft_cap is not None:
        return Absent(TOKAMAX, "it has no soft cap")
    return InProcess(TOKAMAX, lambda a: _tokamax_loss(a, shape))


def loss_contestants(shape: HeadShape, has_torch: bool) -> Sequence[Contestant]:
    options = {
        "weight_layout": shape.weight_layout,
        "logits_soft_cap": shape.logits_soft_cap,
    }
    return (
        InProcess(SUBJECT, lambda a: tokumx_loss(a, shape)),
        InProcess(PLAIN, lambda a: plain_loss(a, shape)),
        _tokamax(shape),
        InProcess(BLOCKED, lambda a: tokumx_loss(a, shape, BLOCKED)),
        *(
            InTorch(name, operation, options)
            if has_torch
            else Absent(name, _SLOW_TORCH_BF16)
            for name, operation in _IN_TORCH.items()
        ),
    )
