"""Routing of tokens to experts, and the ragged form that experts work on."""

from tokumx.ops.moe_routing.losses import load_balance_loss, router_z_loss
from tokumx.ops.moe_routing.permutation import (
    Permutation,
    Permuted,
    moe_permute,
    moe_unpermute,
)
from tokumx.ops.moe_routing.top_k_routing import Routing, top_k_routing

__all__ = [
    "Permutation",
    "Permuted",
    "Routing",
    "load_balance_loss",
    "moe_permute",
    "moe_unpermute",
    "router_z_loss",
    "top_k_routing",
]
