"""Text, tokens and batches, on plain strings and NumPy arrays; and batches made ahead, for any device."""

from .. import hints as _hints
from .batches import EpochBatches, EpochSampler, FixedBatches, RandomBatches, min_tokens, shard, train_val_split
from .bpe import BytePairTokenizer
from .corpus import Corpus, load_corpus
from .errors import DataError
from .prefetch import Prefetcher
from .token_files import open_tokens, write_tokens
from .tokenizer import CharTokenizer

# fmt: off
__all__ = [
    "BytePairTokenizer", "CharTokenizer", "Corpus", "DataError", "EpochBatches", "EpochSampler", "FixedBatches",
    "Prefetcher", "RandomBatches", "load_corpus", "min_tokens", "open_tokens", "shard", "train_val_split",
    "write_tokens",
]
# fmt: on

_instead = {
    "DataLoader": "RandomBatches and EpochBatches give batches of tokens; of arrays, index with randperm(n)",
    "Dataset": "open_tokens reads token files, load_corpus texts",
}
_hints.answer_for(__name__, _instead)
