"""Compute the constant table of Go's ``math/rand`` source from its definition, and print it as base64 lines.

The table is nothing but the state of an additive lagged Fibonacci generator, x[n] = x[n-607] + x[n-273] modulo 2^64,
after 7.8e12 steps from a simple seed. Running it that long takes hours; but the state after n steps is a linear
function of the first one, given by X^n modulo X^607 - X^334 - 1, so repeated squaring reaches it in a second.

Run it to see that the table in ``calico_ipam/model/go_random.py`` is right; a unit test does the same.
"""

from __future__ import annotations

from base64 import b64encode
from struct import pack
from textwrap import wrap

LENGTH, TAP = 607, 273
STEPS = 7_800_000_000_000
WORD = (1 << 64) - 1
LEHMER_FACTOR, LEHMER_MODULUS = 48271, (1 << 31) - 1
FIELD = 18  # bytes for one coefficient of a product: 607 * 2^128 fits easily


def seeded_state() -> list[int]:
    """Return the generator's words as the seed 1 lays them out."""
    x = 1
    for _ in range(20):
        x = x * LEHMER_FACTOR % LEHMER_MODULUS
    words = []
    for _ in range(LENGTH):
        word = 0
        for shift in (20, 10, 0):
            x = x * LEHMER_FACTOR % LEHMER_MODULUS
            word ^= x << shift
        words.append(word)
    return words


def multiplied(one: list[int], other: list[int]) -> list[int]:
    """Return the product of two polynomials; big integers do the convolution (Kronecker substitution)."""
    big = _as_integer(one) * _as_integer(other)
    length = len(one) + len(other) - 1
    data = big.to_bytes(FIELD * (length + 1), "little")
    return [int.from_bytes(data[FIELD * i : FIELD * i + FIELD], "little") & WORD for i in range(length)]


def _as_integer(polynomial: list[int]) -> int:
    return int.from_bytes(b"".join(c.to_bytes(FIELD, "little") for c in polynomial), "little")


def reduced(polynomial: list[int]) -> list[int]:
    """Return the remainder modulo X^607 - X^334 - 1."""
    rest = polynomial + [0] * (LENGTH - len(polynomial))
    for degree in range(len(rest) - 1, LENGTH - 1, -1):
        coefficient = rest[degree]
        rest[degree - LENGTH] = (rest[degree - LENGTH] + coefficient) & WORD
        rest[degree - TAP] = (rest[degree - TAP] + coefficient) & WORD
    return rest[:LENGTH]


def power_of_x(exponent: int) -> list[int]:
    """Return X^exponent modulo X^607 - X^334 - 1."""
    result = [1]
    for bit in bin(exponent)[2:]:
        result = reduced(multiplied(result, result))
        if bit == "1":
            result = reduced([0, *result])
    return reduced(result)


def cooked_words(steps: int = STEPS) -> list[int]:
    """Return the generator's words after ``steps`` steps, each at the place where the generator keeps it."""
    # The generator walks its array downwards: step m writes place (LENGTH - TAP - 1 - m) mod LENGTH.
    first = seeded_state()
    start = [first[_place(m)] for m in range(-LENGTH, 0)]
    weights = power_of_x(steps)
    words = [0] * LENGTH
    for m in range(steps - LENGTH, steps):
        words[_place(m)] = sum(w * x for w, x in zip(weights, start, strict=True)) & WORD
        weights = reduced([0, *weights])
    return words


def _place(step: int) -> int:
    return (LENGTH - TAP - 1 - step) % LENGTH


def table_text(words: list[int]) -> str:
    """Return the words as base64 of little-endian 64-bit numbers."""
    return b64encode(pack(f"<{LENGTH}Q", *words)).decode()


if __name__ == "__main__":
    for line in wrap(table_text(cooked_words()), 108):
        print(f'    "{line}"')  # noqa: T201  # printing is what this program is for
