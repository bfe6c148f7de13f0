"""Two runs of one training, in turns: the plain model and the one with tokumx."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from model import Shape, Transformer, next_token_loss

import tokumx_flax

State = Any  # parameters and the optimizer's state
LEARNING_RATE = 1e-3
WARMUP_STEPS = 5


@dataclass
class Run:
    """One compiled training step, its state, and what was measured of it."""

    name: str
    step: Callable[[State, jax.Array], tuple[State, jax.Array]]
    compiled: jax.stages.Compiled
    state: State
    compile_seconds: float
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def temp_bytes(self) -> int:
        """What the compiled step needs beside its arguments and results."""
        return self.compiled.memory_analysis().temp_size_in_bytes

    def warm_up(self, window: jax.Array) -> None:
        """Runs the step once on a copy of the state, and forgets the result."""
        jax.block_until_ready(self.compiled(_copy(self.state), window))

    def advance(self, window: jax.Array) -> None:
        """Trains on one batch, timed."""
        start = time.perf_counter()
        self.state, loss = self.compiled(self.state, window)
        jax.block_until_ready((self.state, loss))
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(float(loss))


def prepare(
    shape: Shape, batch: int, seed: int
) -> tuple[Run, Run, tokumx_flax.Replacement]:
    """The plain run, tokumx's with equal parameters, and what replace reports."""
    model = Transformer(shape, rngs=nnx.Rngs(seed))
    window = jax.ShapeDtypeStruct((batch, shape.seq_len + 1), jnp.int32)
    plain = compile_run("plain", model, window)
    with tokumx_flax.replace(model) as report:
        tokumx = compile_run("tokumx", model, window)
    return plain, tokumx, report


def compile_run(name: str, model: Transformer, window: jax.ShapeDtypeStruct) -> Run:
    """Compiles the training step of the model as it is now."""
    graph, parameters = nnx.split(model, nnx.Param)
    optimizer = optax.adam(
        optax.linear_schedule(LEARNING_RATE / WARMUP_STEPS, LEARNING_RATE, WARMUP_STEPS)
    )

    def loss_of(parameters: nnx.State, window: jax.Array) -> jax.Array:
        return next_token_loss(nnx.merge(graph, parameters), window)

    def step(state: State, window: jax.Array) -> tuple[State, jax.Array]:
        parameters, optimizer_state = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, window)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates(parameters, updates), optimizer_state), loss

    state = _copy((parameters, optimizer.init(parameters)))
    start = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state, window).compile()
    return Run(name, step, compiled, state, time.perf_counter() - start)


def train(
    runs: Sequence[Run],
    windows: np.ndarray,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Gives every run each batch; who goes first alternates."""
    for run in runs:
        run.warm_up(jnp.asarray(windows[0]))
    for i, window in enumerate(windows):
        window = jnp.asarray(window)
        for run in runs if i % 2 == 0 else reversed(runs):
            run.advance(window)
        after_step()


def _copy(state: State) -> State:
    """Buffers of its own, since a step gives its argument's away."""
    return jax.tree.map(jnp.copy, state)
