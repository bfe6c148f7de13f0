"""Real text without a download: the sources of Python's standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_NOT_LIBRARY = {"dist-packages", "site-packages", "test", "tests"}
_TABLES = {"encodings", "pydoc_data"}  # data rather than text


def standard_library(max_bytes: int) -> list[str]:
    """Source files in the order of their paths, up to max_bytes in all."""
    documents, total = [], 0
    for path in _source_files(Path(sysconfig.get_path("stdlib"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        total += len(text.encode())
        if total > max_bytes:
            break
        documents.append(text)
    return documents


def _source_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).parts):
        if not (_NOT_LIBRARY | _TABLES) & set(path.relative_to(root).parts):
            yield path


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: any text can be written with it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """All documents, one after the other: [tokens] int32."""
    encodings = tokenizer.encode_batch_fast(documents)
    return np.concatenate([np.asarray(e.ids, np.int32) for e in encodings])


def batches(
    tokens: np.ndarray, batch: int, seq_len: int, steps: int, seed: int
) -> np.ndarray:
    """Windows at random places: [steps, batch, seq_len + 1].

    A window holds one token more than the model reads, since it predicts the
    next one at each place.

    Raises:
      ValueError: the text is shorter than one window.
    """
    last = len(tokens) - seq_len - 1
    if last < 0:
        raise ValueError(
            f"demo: seq_len must be < the {len(tokens)} tokens of the text; "
            f"got {seq_len}. Pass a smaller --seq-len."
        )
    starts = np.random.default_rng(seed).integers(0, last + 1, (steps, batch, 1))
    return tokens[starts + np.arange(seq_len + 1)]
