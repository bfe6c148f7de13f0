"""The experts of a layer, applied to rows that are sorted by expert.

R rows, D width, F hidden width, E experts.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tokumx.contract import Config, Configs
from tokumx.dispatch import Preference
from tokumx.ops.ragged_dot import ragged_dot
from tokumx.pallas_lib.activations import ACTIVATIONS, swiglu_oai


@dataclass(frozen=True)
class Experts:
    """Gated units that differ in their weights.

    Attributes:
      weights: w_gate, w_up [E, D, F], w_down [E, F, D]; b_gate, b_up [E, F] and
        b_down [E, D] or None.
      activation: "swiglu_oai", or a key of ACTIVATIONS.
      swiglu_limit, swiglu_alpha: of "swiglu_oai".
      implementation, config: of ragged_dot.
    """

    weights: Mapping[str, jax.Array | None]
    activation: str
    swiglu_limit: float
    swiglu_alpha: float
    implementation: Preference
    config: Config | Configs | None

    @property
    def count(self) -> int:
        """Experts on this device."""
        gate = self.weights["w_gate"]
        assert gate is not None, "experts without weights"
        return gate.shape[0]

    def __call__(
        self,
        rows: jax.Array,
        group_sizes: jax.Array,
        group_offset: jax.Array | None = None,
    ) -> jax.Array:
        """[R, D] -> [R, D] in the dtype of rows.

        Args:
          rows: sorted by expert.
          group_sizes: rows of each expert; of all devices' experts if
            group_offset, the first one here, is given. The rows of experts that
            are not here give zeros.
          group_offset: int32 [].
        """
        dot = functools.partial(
            ragged_dot,
            group_sizes=group_sizes,
            group_offset=group_offset,
            implementation=self.implementation,
            config=self.config,
        )
        weights = self.weights
        gate = dot(rows, weights["w_gate"], bias=weights["b_gate"])  # [R, F]
        up = dot(rows, weights["w_up"], bias=weights["b_up"])
        hidden = self._gated(gate, up)
        return dot(hidden, weights["w_down"], bias=weights["b_down"])

    def _gated(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """In f32 (f64 for f64), rounded once."""
        dtype = jnp.promote_types(gate.dtype, jnp.float32)
        wide_gate, wide_up = gate.astype(dtype), up.astype(dtype)
        if self.activation == "swiglu_oai":
            out = swiglu_oai(wide_gate, wide_up, self.swiglu_limit, self.swiglu_alpha)
        else:
            out = ACTIVATIONS[self.activation](wide_gate) * wide_up
        return out.astype(gate.dtype)
