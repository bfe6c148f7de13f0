"""A small decoder-only transformer in nnx, as one would write it.

Nothing here knows of tokumx: attention is nnx.MultiHeadAttention.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    vocab_size: int = 4096
    seq_len: int = 2048
    layers: int = 4
    features: int = 512
    head_dim: int = 64

    @property
    def heads(self) -> int:
        return self.features // self.head_dim


class SwiGlu(nnx.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, features: int, hidden: int, *, rngs: nnx.Rngs):
        self.gate = nnx.Linear(features, hidden, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(features, hidden, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(hidden, features, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    def __init__(self, shape: Shape, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.RMSNorm(shape.features, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            shape.heads,
            shape.features,
            # The gradient of a key's bias is 0 but for rounding, which Adam
            # would scale up to a full step.
            use_bias=False,
            decode=False,
            rngs=rngs,
        )
        self.mlp_norm = nnx.RMSNorm(shape.features, rngs=rngs)
        self.mlp = SwiGlu(shape.features, shape.features * 8 // 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nnx.Module):
    def __init__(self, shape: Shape, *, rngs: nnx.Rngs):
        small = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(
            shape.vocab_size, shape.features, embedding_init=small, rngs=rngs
        )
        self.positions = nnx.Embed(
            shape.seq_len, shape.features, embedding_init=small, rngs=rngs
        )
        self.blocks = nnx.List([Block(shape, rngs=rngs) for _ in range(shape.layers)])
        self.norm = nnx.RMSNorm(shape.features, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[B, T] int32 -> logits of the next token, [B, T, vocab]."""
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


def next_token_loss(model: Transformer, window: jax.Array) -> jax.Array:
    """Mean cross-entropy over the window [B, T + 1], in nats a token."""
    logits = model(window[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, window[:, 1:])
    return losses.mean()
