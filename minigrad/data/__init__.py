"""Text, tokens and batches, on plain strings and NumPy arrays; and loaders and batches made ahead, of any data."""

from .. import hints as _hints
from .batches import EpochBatches, EpochSampler, FixedBatches, RandomBatches, min_tokens, shard, train_val_split
from .bpe import BytePairTokenizer, LibraryTokenizer, load_tokenizer
from .corpus import Corpus, load_corpus
from .errors import DataError
from .loader import DataLoader, Dataset, TensorDataset
from .prefetch import Prefetcher
from .token_files import open_tokens, write_tokens
from .tokenizer import CharTokenizer

# fmt: off
__all__ = [
    "BytePairTokenizer", "CharTokenizer", "Corpus", "DataError", "DataLoader", "Dataset", "EpochBatches",
    "EpochSampler", "FixedBatches", "LibraryTokenizer", "Prefetcher", "RandomBatches", "TensorDataset", "load_corpus",
    "load_tokenizer", "min_tokens", "open_tokens", "shard", "train_val_split", "write_tokens",
]
# fmt: on

_hints.answer_for(__name__, searched=True)
