"""`xla`: the statistics of logits as the definition reads. The gold standard.

B problems (1, or more under vmap), G x T tokens, D width, V words.

  row_max   = max_v z[v]
  log_sum   = log(sum_v exp(z[v] - row_max))
  label     = z[y] - row_max;  0 where the label y is not among the V words
  logit_sum = sum_v (z[v] - row_max) over words not removed; 0 if not asked for

row_max counts as a constant: what is added to it is subtracted elsewhere.
Memory: logits [B, G, T, V] f32, twice more in the backward.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.ops.linear_softmax_cross_entropy.logits import (
    IGNORED,
    Logits,
    finite_max,
    is_removed,
)

Config = NoConfig
LOCAL = False


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del call, device, direction
    return Config()


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del call, device, direction
    return [Config()]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    # One problem: vmap batches this function itself. Without axes of size 1, as
    # XLA's products are up to 1.4x slower with them.
    one = {n: x[0] for n, x in arrays.items()}
    shape = arrays["labels"].shape
    if shape[1] == 1:
        one |= {n: one[n][0] for n in ("x", "labels")}
    labels, bias = one["labels"], one.get("bias")
    form = Logits.of(call, one["x"], one["weight"], "input")
    x = jnp.where(labels[..., None] == IGNORED, 0, one["x"])
    product = jnp.einsum(
        f"...d,{form.weight_layout}->...v",
        x.astype(form.dot_dtype),
        form.weight(one["weight"]),
        preferred_element_type=form.accumulate,
    )
    z, _ = form.finished(product, bias)
    row_max = lax.stop_gradient(z.max(-1))
    shift = finite_max(row_max)
    shifted = z - shift[..., None]
    logit_sum = jnp.zeros_like(row_max)
    if call.option("needs_sum"):
        kept = shifted if bias is None else jnp.where(is_removed(bias), 0, shifted)
        logit_sum = kept.sum(-1)
    found = {
        "row_max": row_max,
        "log_sum": _log(jnp.exp(shifted).sum(-1)),
        "label": _label_logits(z, labels, bias) - shift,
        "logit_sum": logit_sum,
    }
    is_here = (labels >= 0) & (labels < z.shape[-1])
    found["label"] = jnp.where(is_here, found["label"], 0)
    return {n: y.reshape(shape) for n, y in found.items()}


def _log(total: jax.Array) -> jax.Array:
    """-inf at 0, without a gradient: 0 / 0 would be NaN."""
    is_zero = total == 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.where(is_zero, 1, total)))


def _label_logits(z: jax.Array, labels: jax.Array, bias: jax.Array | None) -> jax.Array:
    """z of each label, 0 <= label < V; a removed word gives -inf, no gradient."""
    index = jnp.clip(labels, 0, z.shape[-1] - 1)
    # Of z, which exists anyway: of `z - shift` it would have XLA keep both.
    found = jnp.take_along_axis(z, index[..., None], -1)[..., 0]
    return (
        found if bias is None else jnp.where(is_removed(bias)[index], -jnp.inf, found)
    )
