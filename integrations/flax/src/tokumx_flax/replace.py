"""Switches the attention of an nnx model to tokumx, in place, and back."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flax import linen, nnx

from tokumx_flax.attention import dot_product_attention, is_default

AttentionFn = Callable[..., Any]
NAME = "tokumx_flax.replace"


def replace(
    model: nnx.Module, *, implementation: str | Sequence[str] | None = None
) -> "Replacement":
    """Lets every nnx.MultiHeadAttention of a model compute with tokumx.

    Sets `attention_fn` of those that have Flax's default one, wherever they
    are nested; a module that is shared is switched once. Parameters, their
    paths, the state and checkpoints stay as they are. The function is part of
    the graph, so nnx.jit and nnx.split see the change; a jax.jit that closed
    over the model before does not.

    Args:
      model: the model, or a part of it. Changed in place.
      implementation: see dot_product_attention.

    Returns:
      What was changed and what was left alone, to print, and to undo: by
      `.undo()`, or at the end of a `with` block.

    Raises:
      TypeError: model is not an nnx.Module.
    """
    _check_model(model)
    if implementation is not None and not isinstance(implementation, str):
        implementation = tuple(implementation)
    new = _attention_fn(implementation)
    rows: list[Row] = []
    switches: list[_Switch] = []
    for path, module in _attention_modules(model):
        place = ".".join(map(str, path)) or "(the model)"
        former = module.attention_fn
        why_not = _why_left_alone(module)
        if why_not is None:
            module.attention_fn = new
            switches.append(_Switch(module, former, new))
        outcome = f"now {_describe(new)}" if why_not is None else f"left: {why_not}"
        note = _note(module) if why_not is None else ""
        rows.append(Row(place, _describe(former), why_not is None, outcome + note))
    return Replacement(type(model).__name__, tuple(rows), tuple(switches))


@dataclass(frozen=True, slots=True)
class Row:
    """One attention module of a report.

    Attributes:
      path: where the module is, as in the model's state.
      was: its attention_fn before.
      is_switched: it computes with tokumx because of this report's call.
      outcome: what it computes with now, or why it was left alone.
    """

    path: str
    was: str
    is_switched: bool
    outcome: str


@dataclass(frozen=True, slots=True, eq=False)
class _Switch:
    module: Any
    former: AttentionFn
    new: AttentionFn


class Replacement:
    """What `replace` did. Prints as a table; undoes it, once."""

    def __init__(
        self, model: str, rows: tuple[Row, ...], switches: tuple[_Switch, ...]
    ):
        self._model = model
        self._switches = switches
        self.rows = rows

    def undo(self) -> None:
        """Gives each module that was switched its former function back.

        A function that was set since then is kept. Acts on the modules that
        were switched: a copy made since then keeps what it was copied with.
        """
        for switch in self._switches:
            if switch.module.attention_fn is switch.new:
                switch.module.attention_fn = switch.former
        self._switches = ()

    def __enter__(self) -> "Replacement":
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __str__(self) -> str:
        if not self.rows:
            return f"{NAME}: {self._model} has no attention module; nothing changed."
        count = sum(row.is_switched for row in self.rows)
        lines = [("path", "was", "outcome")]
        lines += [(row.path, row.was, row.outcome) for row in self.rows]
        path_width, was_width = (max(len(x[i]) for x in lines) for i in (0, 1))
        table = [f"{p:<{path_width}}  {w:<{was_width}}  {o}" for p, w, o in lines]
        title = f"{NAME}: {count} of {len(self.rows)} attention modules switched"
        return "\n".join([title, *table])

    __repr__ = __str__


def _check_model(model: Any) -> None:
    if isinstance(model, linen.Module):
        raise TypeError(
            f"{NAME}: model must be an nnx.Module; got the linen module "
            f"{type(model).__name__}, which cannot be changed in place. Pass "
            "attention_fn=tokumx_flax.dot_product_attention where it makes its "
            "attention."
        )
    if not isinstance(model, nnx.Module):
        is_class = isinstance(model, type)
        got = f"the class {model.__name__}" if is_class else type(model).__name__
        raise TypeError(
            f"{NAME}: model must be an nnx.Module; got {got}. "
            "Pass the module itself, before nnx.split or after nnx.merge."
        )


def _attention_modules(model: nnx.Module) -> Iterator[tuple[Any, Any]]:
    """Each module that has an attention_fn, once, with its first path."""
    for path, module in nnx.iter_modules(model, graph=True):
        if isinstance(module, nnx.MultiHeadAttention) or hasattr(
            module, "attention_fn"
        ):
            yield path, module


@functools.cache
def _attention_fn(implementation: str | tuple[str, ...] | None) -> AttentionFn:
    """One object for each implementation, so that equal graphs compare equal."""
    if implementation is None:
        return dot_product_attention
    return functools.partial(dot_product_attention, implementation=implementation)


def _why_left_alone(module: Any) -> str | None:
    fn = module.attention_fn
    if getattr(fn, "func", fn) is dot_product_attention:
        return "already tokumx"
    if not isinstance(module, nnx.MultiHeadAttention):
        return f"{type(module).__name__} is not an nnx.MultiHeadAttention"
    if fn is not nnx.dot_product_attention:
        return "custom attention_fn"
    return None


def _note(module: nnx.MultiHeadAttention) -> str:
    """What keeps a switched module on Flax's function all the same."""
    if not is_default(module.precision):
        return f"; but Flax's function runs: precision={module.precision}"
    if module.dropout_rate > 0 and module.broadcast_dropout:
        return "; but Flax's function runs with dropout on: broadcast_dropout=True"
    return ""


def _describe(fn: AttentionFn) -> str:
    if fn is nnx.dot_product_attention:
        return "nnx.dot_product_attention"
    if fn is dot_product_attention:
        return "tokumx_flax.dot_product_attention"
    if isinstance(fn, functools.partial):
        given = [_describe(fn.func), *map(repr, fn.args)]
        given += [f"{name}={x!r}" for name, x in fn.keywords.items()]
        return f"partial({', '.join(given)})"
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{getattr(fn, '__module__', type(fn).__module__)}.{name}"
