"""How much error a kernel may have; the only table of tolerances.

The rule: kernel_error <= naive_error * factor + floor * eps, where naive is
the plain implementation in the same dtype, both errors are the largest
absolute deviation from float64 truth over the truth's largest magnitude, and
eps is the spacing of the output dtype at 1. The factor covers another order of
summation; the floor covers a naive result that happens to be exact.
"""

from dataclasses import dataclass

from tokumx.contract import Direction


@dataclass(frozen=True)
class Budget:
    """factor and floor of the rule, and why they are what they are."""

    factor: float
    floor: float
    reason: str


_DEFAULT = Budget(2.0, 4.0, "another order of summation in f32")

_TABLE: dict[tuple[str, str, Direction], Budget] = {
    ("dot_product_attention", "float32", "forward"): Budget(
        2.0, 8.0, "online softmax rescales each row once a key block"
    ),
    ("dot_product_attention", "float32", "backward"): Budget(
        2.0, 16.0, "recomputes the weights from the log-sum-exp, one rounding more"
    ),
    ("dot_product_attention", "bfloat16", "forward"): Budget(
        1.5, 1.0, "f32 inside, one rounding at the end"
    ),
    ("dot_product_attention", "bfloat16", "backward"): Budget(
        1.5, 1.0, "f32 inside, one rounding at the end"
    ),
    ("dot_product_attention", "float16", "forward"): Budget(
        1.5, 1.0, "f32 inside, one rounding at the end"
    ),
    ("dot_product_attention", "float16", "backward"): Budget(
        1.5, 1.0, "f32 inside, one rounding at the end"
    ),
    # jax 0.10.2 sums 64 terms five times as exactly in a product with 512 keys as
    # in one with 256, and logits in the hundreds magnify that.
    ("ragged_paged_attention", "float32", "forward"): Budget(
        6.0, 8.0, "XLA takes another order of summation for another tile"
    ),
    ("ragged_paged_attention", "bfloat16", "forward"): Budget(
        1.5, 1.0, "f32 inside, one rounding at the end"
    ),
    ("ragged_paged_attention", "float16", "forward"): Budget(
        1.5, 1.0, "f32 inside, one rounding at the end"
    ),
}


def budget_for(op: str, dtype: str, direction: Direction) -> Budget:
    """The budget of an op's results in a dtype; a strict default if unlisted."""
    return _TABLE.get((op, dtype, direction), _DEFAULT)
