"""Text, tokens and batches, on plain strings and NumPy arrays."""

from .batches import FixedBatches, RandomBatches, min_tokens, train_val_split
from .corpus import Corpus, load_corpus
from .errors import DataError
from .tokenizer import CharTokenizer

__all__ = [
    "CharTokenizer",
    "Corpus",
    "DataError",
    "FixedBatches",
    "RandomBatches",
    "load_corpus",
    "min_tokens",
    "train_val_split",
]
