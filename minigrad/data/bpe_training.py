"""Learning byte-pair merges from counted words (Sennrich et al., "Neural Machine Translation of Rare Words", 2016)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from .pretokenize import BYTE_CHARACTERS

Pair = tuple[int, int]


def byte_tokens() -> list[bytes]:
    """The first 256 tokens, in GPT-2's order: printable bytes come first."""
    return [bytes([byte]) for byte in sorted(range(256), key=BYTE_CHARACTERS.__getitem__)]


def learn_merges(word_counts: Mapping[bytes, int], vocab_size: int) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """Merge the most frequent pair of neighbouring tokens, again and again.

    Of pairs that are equally frequent the one of the lower ids comes first, so the result depends on the counts alone,
    not on the order of the words. It ends early if no pair occurs twice.

    The counts of pairs are kept, and a merge visits only the words that contain its pair. The heap is lazy: an entry
    whose count has changed goes back with the count of now, which is right since counts in the heap never lag behind
    growth.

    Args:
        word_counts: how often each word occurs; merges never cross words.
        vocab_size: the number of tokens to reach, 256 bytes included.

    Returns:
        the tokens by id, and the merges in their order.
    """
    tokens = byte_tokens()
    ids = {token: index for index, token in enumerate(tokens)}
    first = [ids[bytes([byte])] for byte in range(256)]
    words = [[first[byte] for byte in word] for word in word_counts]
    weights = list(word_counts.values())
    counts: defaultdict[Pair, int] = defaultdict(int)
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        for pair in pairwise(word):
            counts[pair] += weights[index]
            places[pair].add(index)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)

    merges: list[tuple[bytes, bytes]] = []
    while len(tokens) < vocab_size and heap:
        negative, pair = heapq.heappop(heap)
        if counts[pair] != -negative:
            if counts[pair] > 1:
                heapq.heappush(heap, (-counts[pair], pair))
            continue
        if -negative < 2:
            break
        merged = tokens[pair[0]] + tokens[pair[1]]
        merges.append((tokens[pair[0]], tokens[pair[1]]))
        # Two merges may spell the same token: "a" + "bc" and "ab" + "c".
        token = ids.setdefault(merged, len(tokens))
        if token == len(tokens):
            tokens.append(merged)
        grown = set()
        for index in places.pop(pair):
            word, weight = words[index], weights[index]
            words[index] = after = _replace(word, pair, token)
            for old in pairwise(word):
                counts[old] -= weight
            for new in pairwise(after):
                counts[new] += weight
                if token in new:
                    places[new].add(index)
                    grown.add(new)
        _push(heap, counts, grown)
    return tokens, merges


def _push(heap: list[tuple[int, Pair]], counts: Mapping[Pair, int], pairs: Iterable[Pair]) -> None:
    for pair in pairs:
        heapq.heappush(heap, (-counts[pair], pair))


def _replace(word: list[int], pair: Pair, token: int) -> list[int]:
    """`word` with each `pair`, found from the left, replaced by `token`."""
    left, right = pair
    result = []
    position = 0
    while position < len(word):
        if word[position] == left and word[position + 1 : position + 2] == [right]:
            result.append(token)
            position += 2
        else:
            result.append(word[position])
            position += 1
    return result
