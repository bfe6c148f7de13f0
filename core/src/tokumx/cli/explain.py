"""`tokumx explain`: which implementation a call takes, and why."""

import ast
import inspect
import json
from typing import Annotated, Any

import typer

import tokumx
from tokumx.contract import ArraySpec, DeviceSpec, current_device, use_device
from tokumx.ops import OPS


def explain(
    op: Annotated[str, typer.Argument(help="A public op, e.g. dot_product_attention.")],
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Arrays as dtype[shape], e.g. query=bf16[2,4096,32,128]; options "
            "as Python literals, e.g. is_causal=True.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            help="Decide for another device, as platform:kind, e.g. 'gpu:NVIDIA H200'."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print which implementation a call takes, which configs, and why not the others.

    Example: tokumx explain dot_product_attention query=f32[1,2048,8,64]
    key=f32[1,2048,8,64] value=f32[1,2048,8,64] is_causal=True
    """
    try:
        function = _op(op)
        kwargs = dict(_argument(function, text) for text in arguments)
        with use_device(_device(device)):
            result = tokumx.explain(function, **kwargs)
    except (ValueError, TypeError, tokumx.UnsupportedError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    text = json.dumps(result.to_json(), indent=1) if as_json else str(result)
    typer.echo(text)


def _op(name: str) -> Any:
    if name not in OPS:
        raise ValueError(f"op must be among {', '.join(OPS)}; got {name!r}.")
    return getattr(tokumx, name)


def _argument(function: Any, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    known = list(inspect.signature(function).parameters)
    if not equals or name not in known:
        raise ValueError(
            f"{function.__name__}: arguments are NAME=VALUE with a name among "
            f"{', '.join(known)}; got {text!r}."
        )
    if value.endswith("]") and not value.startswith("["):
        return name, ArraySpec.parse(value).to_jax()
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _device(text: str | None) -> DeviceSpec:
    if text is None:
        return current_device()
    platform, colon, kind = text.partition(":")
    if platform not in ("cpu", "gpu", "tpu") or not colon or not kind:
        raise ValueError(
            f"--device must be cpu:KIND, gpu:KIND or tpu:KIND; got {text!r}."
        )
    return DeviceSpec(platform, kind)
