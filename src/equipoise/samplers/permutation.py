"""Seeded permutations that can be evaluated at any position without being stored.

A Feistel network over the smallest near-square A × B ≥ size, with cycle walking for the few places outside:

    x = (high, low);   high += F1(low) mod A;   low += F2(high) mod B;   ...   eight rounds;   again while x ≥ size

Each round can be undone, so the whole is a permutation, whatever F is. A sampler that can compute the item at position
p of the third pass over a class needs no shuffled copy, and resumes at no cost. A random rotation before the rounds
makes every item equally likely at every position; all orders of a handful of items occur, some a little more often.

Reference: Black, Rogaway, "Ciphers with arbitrary finite domains", 2002. The constants of `mix` are those of Chris
Wellons' hash-prospector (public domain).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

GOLDEN = np.uint32(0x9E3779B9)
LARGEST = 1 << 31  # sizes are smaller, so that the sum of two positions fits in 32 bits
_FIRST, _SECOND = np.uint32(0x21F0AAAD), np.uint32(0x735A2D97)
_HALF = np.uint32(16)
_FACTORS = (np.arange(1, 9, dtype=np.uint32) * GOLDEN) | np.uint32(1)  # one odd number per round


def mix(words: Words) -> Words:
    """Scatter the bits of `words` (uint32, any shape) in place, and return them: a bijection that looks random.

    >>> mix(np.arange(3, dtype=np.uint32)).tolist()
    [0, 2261973619, 229111015]
    """
    words ^= words >> np.uint32(16)
    words *= _FIRST
    words ^= words >> np.uint32(15)
    words *= _SECOND
    words ^= words >> np.uint32(15)
    return words


def permute(position: Words, size: Words, key: Words) -> Words:
    """The element at `position` [M] of the permutation of range(`size` [M]) given by `key` [M]; uint32 [M].

    >>> whole = np.arange(5, dtype=np.uint32)
    >>> permute(whole, np.full(5, 5, np.uint32), np.full(5, 1, np.uint32)).tolist()
    [1, 4, 0, 3, 2]
    """
    rows = np.ceil(np.sqrt(size))  # float64 holds these integers exactly, and divides them several times faster
    columns = np.ceil(size / rows)
    values = _rounds(_rotated(position, size, key), rows, columns, key)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        walked = _rounds(values[outside], rows[outside], columns[outside], key[outside])
        values[outside] = walked
        outside = outside[walked >= size[outside]]
    return values


def _rotated(position: Words, size: Words, key: Words) -> Words:
    """(position + offset) mod size, with an offset uniform in [0, size) and independent of the rounds."""
    moved = ((key * _FIRST) * (size * 2.0**-32)).astype(np.uint32)
    moved += position
    return np.asarray(np.minimum(moved, moved - size))


def _rounds(values: Words, rows: NDArray[np.float64], columns: NDArray[np.float64], key: Words) -> Words:
    high = np.floor(values / columns).astype(np.uint32)
    high_size, low_size = rows.astype(np.uint32), columns.astype(np.uint32)
    low = values - high * low_size
    scratch = np.empty_like(low)
    for number, factor in enumerate(_FACTORS):
        source, changed, size = (low, high, high_size) if number % 2 == 0 else (high, low, low_size)
        word = source + key
        word *= factor
        word ^= np.right_shift(word, np.uint32(15), out=scratch)
        word *= _SECOND
        word >>= _HALF  # the upper half of the word, scaled to [0, size): both factors have at most 16 bits
        word *= size
        word >>= _HALF
        changed += word
        np.minimum(changed, np.subtract(changed, size, out=scratch), out=changed)  # modulo size: below 0 wraps around
    high *= low_size
    high += low
    return high
