"""The native CPU kernels: one shared library, found and registered on first use."""

from tokumx.native.loader import (
    Library,
    call_c,
    instruction_set,
    library,
    register,
    threads,
    use_instruction_set,
    why_unavailable,
)

__all__ = [
    "Library",
    "call_c",
    "instruction_set",
    "library",
    "register",
    "threads",
    "use_instruction_set",
    "why_unavailable",
]
