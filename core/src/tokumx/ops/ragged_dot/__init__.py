"""Products of rows with the matrix of their group."""

from tokumx.ops.ragged_dot.contracting import ragged_contracting_dot
from tokumx.ops.ragged_dot.ragged_dot import ragged_dot

__all__ = ["ragged_contracting_dot", "ragged_dot"]
