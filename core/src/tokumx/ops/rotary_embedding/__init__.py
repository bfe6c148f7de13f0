"""Rotary position embedding of queries and keys."""

from tokumx.ops.rotary_embedding.rotary_embedding import rotary_embedding
from tokumx.ops.rotary_embedding.scaling import (
    LinearScaling,
    Llama3Scaling,
    YarnScaling,
)
from tokumx.ops.rotary_embedding.tables import RotaryTables, rotary_tables

__all__ = [
    "LinearScaling",
    "Llama3Scaling",
    "RotaryTables",
    "YarnScaling",
    "rotary_embedding",
    "rotary_tables",
]
