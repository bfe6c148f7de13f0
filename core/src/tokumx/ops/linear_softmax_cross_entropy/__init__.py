"""Cross-entropy of a linear layer's logits, which never exist whole."""

from tokumx.ops.linear_softmax_cross_entropy.linear_softmax_cross_entropy import (
    linear_softmax_cross_entropy,
    linear_token_log_probs,
)

__all__ = ["linear_softmax_cross_entropy", "linear_token_log_probs"]
