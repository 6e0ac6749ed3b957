"""Makes sentences of made words, and variants of them with some words replaced."""

import random

_WORDS = ["".join(random.Random(seed).choices("etaoinshrdlu", k=2 + seed % 8)) for seed in range(3000)]


def sentences(count: int, *, seed: int, num_words: int = 30) -> list[str]:
    numbers = random.Random(seed)
    return [" ".join(numbers.choices(_WORDS, k=num_words)) for _ in range(count)]


def changed(text: str, num_words: int, *, seed: int) -> str:
    """The text with this many of its words replaced."""
    numbers, words = random.Random(seed), text.split()
    for place in numbers.sample(range(len(words)), num_words):
        words[place] = numbers.choice(_WORDS)
    return " ".join(words)
