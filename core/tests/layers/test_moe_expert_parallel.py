"""Experts and tokens split over eight devices, against one device.

No backend here has ragged_all_to_all. Its path is run with a stand-in that
does what its documentation says, and the real one is lowered for a TPU.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import tokumx

EXPERTS = ("w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")
OPTIONS = {"k": 3, "renormalize": True}


def ragged_all_to_all_by_gather(
    operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name
):
    """What lax.ragged_all_to_all documents, by gathering everything."""
    del recv_sizes
    here = lax.axis_index(axis_name)
    everything = lax.all_gather(operand, axis_name)
    starts, sizes, places = (
        lax.all_gather(a, axis_name)
        for a in (input_offsets, send_sizes, output_offsets)
    )
    row = jnp.arange(output.shape[0])
    for sender in range(everything.shape[0]):
        offset = row - places[sender, here]
        comes = (offset >= 0) & (offset < sizes[sender, here])
        index = jnp.where(comes, starts[sender, here] + offset, 0)
        output = jnp.where(comes[:, None], everything[sender][index], output)
    return output


@pytest.fixture(params=["all_gather", "ragged_all_to_all"])
def exchange(request, monkeypatch):
    if request.param == "ragged_all_to_all":
        monkeypatch.setattr(lax, "ragged_all_to_all", ragged_all_to_all_by_gather)
    return request.param


def specs_of(arrays, axis="x"):
    split = (*EXPERTS, "x", "router_logits")
    return {n: PartitionSpec(axis) if n in split else PartitionSpec() for n in arrays}


def parallel_moe(arrays, mesh, exchange, check_vma=True, **options):
    run = functools.partial(tokumx.moe, axis_name="x", exchange=exchange, **options)
    return jax.shard_map(
        lambda a: run(**a),
        mesh=mesh,
        in_specs=(specs_of(arrays),),
        out_specs=PartitionSpec("x"),
        check_vma=check_vma,
    )(arrays)


def loss_of(fn):
    def loss(arrays):
        out = fn(arrays)
        return (out * jnp.cos(out)).sum()

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize(("devices", "check_vma"), [(2, True), (8, True), (8, False)])
def test_moe_expert_parallel_equals_one_device(
    devices, check_vma, exchange, make_arrays, assert_close
):
    arrays = make_arrays((16, 2), has_biases=True)
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(AxisType.Auto,))
    split = functools.partial(
        parallel_moe, mesh=mesh, exchange=exchange, check_vma=check_vma, **OPTIONS
    )
    whole = lambda a: tokumx.moe(**a, **OPTIONS)  # noqa: E731
    assert_close(loss_of(split)(arrays), loss_of(whole)(arrays))


@pytest.mark.parametrize("favourites", [[0, 1, 2], [0, 3, 7]])
def test_moe_expert_parallel_drops_no_token_where_all_choose_the_same(
    favourites, exchange, make_arrays, assert_close
):
    """The most rows that a device can receive; others receive none."""
    arrays = make_arrays((32,))
    del arrays["router_weight"]
    arrays["router_logits"] = np.full((32, 8), -9, np.float32)
    arrays["router_logits"][:, favourites] = [1, 2, 3]
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = functools.partial(parallel_moe, mesh=mesh, exchange=exchange, **OPTIONS)
    whole = lambda a: tokumx.moe(**a, **OPTIONS)  # noqa: E731
    assert_close(jax.jit(split)(arrays), jax.jit(whole)(arrays))


def test_moe_expert_parallel_beside_another_mesh_axis(
    exchange, make_arrays, assert_close
):
    """Data over one axis, experts and data over the other."""
    arrays = make_arrays((16,))
    mesh = jax.make_mesh((2, 4), ("data", "x"), axis_types=(AxisType.Auto,) * 2)
    specs = {**specs_of(arrays), "x": PartitionSpec(("data", "x"))}

    def split(arrays):
        run = functools.partial(tokumx.moe, axis_name="x", exchange=exchange)
        return jax.shard_map(
            lambda a: run(**a, **OPTIONS),
            mesh=mesh,
            in_specs=(specs,),
            out_specs=specs["x"],
        )(arrays)

    whole = lambda a: tokumx.moe(**a, **OPTIONS)  # noqa: E731
    assert_close(loss_of(split)(arrays), loss_of(whole)(arrays))


def test_moe_expert_parallel_losses_are_of_all_tokens(
    exchange, make_arrays, assert_close
):
    arrays = make_arrays((16,))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def split(arrays):
        def losses(arrays):
            _, aux = tokumx.moe(
                **arrays, **OPTIONS, axis_name="x", exchange=exchange, return_aux=True
            )
            return aux.load_balance_loss + aux.router_z_loss

        return jax.shard_map(
            losses,
            mesh=mesh,
            in_specs=(specs_of(arrays),),
            out_specs=PartitionSpec(),
        )(arrays)

    def whole(arrays):
        _, aux = tokumx.moe(**arrays, **OPTIONS, return_aux=True)
        return aux.load_balance_loss + aux.router_z_loss

    both = [jax.jit(jax.value_and_grad(f))(arrays) for f in (split, whole)]
    assert_close(*both)


def test_moe_expert_parallel_rounds_bf16_sums_once(exchange, make_arrays):
    arrays = {n: jnp.asarray(a, jnp.bfloat16) for n, a in make_arrays((16,)).items()}
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = functools.partial(parallel_moe, mesh=mesh, exchange=exchange, **OPTIONS)
    found = jax.jit(split)(arrays)
    expected = tokumx.moe(**arrays, **OPTIONS)
    assert found.dtype == jnp.bfloat16
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(
        found.astype(jnp.float32), expected.astype(jnp.float32), atol=0.02 * scale
    )


def test_moe_expert_parallel_passes_debug_checks(exchange, make_arrays, assert_close):
    """No row is given to an expert that is out of range, also inside."""
    arrays = make_arrays((16,))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = functools.partial(parallel_moe, mesh=mesh, exchange=exchange, **OPTIONS)
    with tokumx.debug_checks():
        found = jax.block_until_ready(jax.jit(split)(arrays))
        jax.effects_barrier()
    assert_close(found, tokumx.moe(**arrays, **OPTIONS))


def test_moe_expert_parallel_takes_all_gather_on_a_cpu(make_arrays):
    arrays = make_arrays((16,))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def program():
        split = functools.partial(parallel_moe, mesh=mesh, exchange=None, **OPTIONS)
        return str(jax.make_jaxpr(split)(arrays))

    assert "ragged_all_to_all" not in program()
    with tokumx.use_device(tokumx.DeviceSpec("tpu", "TPU v6 lite")):
        assert program().count("= ragged_all_to_all[") == 2


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_moe_expert_parallel_lowers_ragged_all_to_all(platform, make_arrays):
    """Two exchanges forward and two more backward, in the exported program."""
    arrays = make_arrays((16,))
    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def loss(arrays):
        out = parallel_moe(arrays, mesh, "ragged_all_to_all", **OPTIONS)
        return (out**2).sum()

    unstable = jax.export.DisabledSafetyCheck.custom_call("ragged_all_to_all")
    exported = jax.export.export(
        jax.jit(jax.grad(loss)), platforms=[platform], disabled_checks=[unstable]
    )(arrays)
    assert exported.mlir_module().count("@ragged_all_to_all(") == 4
