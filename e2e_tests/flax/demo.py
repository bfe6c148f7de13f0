"""Trains a small transformer twice, plain and with tokumx's attention.

Both start from the same parameters and see the same text, the sources of
Python's standard library. The only difference is one line,
`tokumx_flax.replace(model)`. Steps of the two take turns, so that a busy
machine slows both. Exits with 1 when the losses drift apart, or don't fall.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import mean

import jax
import report
import training
from corpus import batches, encode, standard_library, train_tokenizer
from model import Shape
from rich.console import Console

import tokumx

ROOT = Path(__file__).resolve().parents[2]
TEXT_BYTES = 4_000_000
# Nats. At the default settings the traces differ by 1e-6, one rounding of the
# loss, as do those of two plain runs whose parameters differ by one rounding. By
# 100 steps of 512 tokens it is 5e-5 and 2e-5: Adam makes roundings grow.
LOSS_BUDGET = 1e-4


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--steps", type=int, default=30, help="training steps of each run (%(default)s)"
    )
    add("--seq-len", type=int, default=2048, help="tokens a sequence (%(default)s)")
    add("--batch", type=int, default=1, help="sequences a step (%(default)s)")
    add("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    add("--features", type=int, default=512, help="model width (%(default)s)")
    add("--vocab", type=int, default=4096, help="size of the vocabulary (%(default)s)")
    add("--seed", type=int, default=0, help="of parameters and batches (%(default)s)")
    add(
        "--out",
        type=Path,
        default=ROOT / "benchmarks/results/demo.png",
        help="where the plot goes (%(default)s)",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    console = Console()
    start = time.perf_counter()
    documents = standard_library(TEXT_BYTES)
    tokens = encode(train_tokenizer(documents, args.vocab), documents)
    say(
        console,
        f"text: {len(documents)} files of the standard library, {len(tokens)} tokens "
        f"of {args.vocab} kinds ({time.perf_counter() - start:.1f} s)",
    )
    windows = batches(tokens, args.batch, args.seq_len, args.steps, args.seed)
    shape = Shape(args.vocab, args.seq_len, args.layers, args.features)
    plain, fast, replacement = training.prepare(shape, args.batch, args.seed)
    say(console, f"\n{replacement}\n")
    runs = (plain, fast)
    with report.progress_bar() as bar:
        task = bar.add_task("", total=args.steps)
        training.train(
            runs,
            windows,
            lambda: bar.update(task, advance=1, description=report.last_losses(runs)),
        )
    console.print(report.table(plain, fast, args.batch * args.seq_len))
    window = jax.ShapeDtypeStruct(windows.shape[1:], windows.dtype)
    say(console, f"\n{tokumx.explain(fast.step, fast.state, window)}\n")
    title = f"{args.layers} layers of {args.features}, {args.seq_len} tokens a sequence"
    report.plot(plain, fast, title, args.out)
    say(console, f"plot: {args.out}")
    return verdict(plain, fast, console)


def say(console: Console, text: str) -> None:
    """Prints text as it is: no colours, no line breaks of rich's own."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def verdict(plain: training.Run, fast: training.Run, console: Console) -> int:
    """0 if the two runs agree and have learned something."""
    difference = report.largest_difference(plain, fast)
    if not difference <= LOSS_BUDGET:  # also when it is NaN
        say(
            console,
            f"demo: losses must agree to {LOSS_BUDGET}; they differ by {difference}.",
        )
        return 1
    if not all(mean(run.losses[-5:]) < run.losses[0] for run in (plain, fast)):
        say(console, "demo: losses must fall; raise --steps.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
