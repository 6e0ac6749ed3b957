"""Measures how many near-duplicate texts MinHash finds, how many it reports wrongly, and what that costs.

    python benchmarks/minhash.py [--quick] [--texts N] [--json FILE]

Made texts of 20 to 50 made words. Half of them stand alone; the others form families of one text and three variants,
each with one to five of its words replaced. So similarities lie on both sides of the threshold of 0.8. What is true is
counted here, by sets of 5-grams of characters: every pair inside a family, and every pair of a sample of 1,000 texts
(of a tenth of the texts where those are fewer).

recall: the share of the true pairs (Jaccard at least 0.8) that `similar_pairs` reports.
false_pairs: reported pairs of `similar_pairs`, and (text that goes, text that stays) of `near_duplicates`, below 0.8.
cpu_s, peak_gb: CPU seconds of `near_duplicates` over all texts, and the peak resident set of a process that makes the
texts and calls it (10^9 bytes). Those of `similar_pairs` are printed.
"""

import argparse
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

from nemo_vfm.dedup.texts.near_texts import near_duplicates, similar_pairs

THRESHOLD, FAMILY, VOCABULARY, SAMPLE = 0.8, 4, 20_000, 1_000
Pairs = set[tuple[int, int]]


def made_texts(count: int, seed: int = 0) -> list[str]:
    """The first half in families, one after another; the second half alone."""
    numbers = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    vocabulary = ["".join(numbers.choices(letters, k=numbers.randint(2, 10))) for _ in range(VOCABULARY)]
    texts: list[str] = []
    while len(texts) < count:
        words = numbers.choices(vocabulary, k=numbers.randint(20, 50))
        texts.append(" ".join(words))
        if len(texts) < count // 2:
            texts += [" ".join(variant(words, vocabulary, numbers)) for _ in range(FAMILY - 1)]
    return texts[:count]


def variant(words: list[str], vocabulary: list[str], numbers: random.Random) -> list[str]:
    """The words with one to five of them replaced."""
    changed = list(words)
    for place in numbers.sample(range(len(words)), numbers.randint(1, 5)):
        changed[place] = numbers.choice(vocabulary)
    return changed


def shingles(text: str) -> set[str]:
    """5-grams of characters, without any code of the package."""
    return {text[first : first + 5] for first in range(len(text) - 4)}


def similarity(a: set[str], b: set[str]) -> float:
    """Of Jaccard."""
    return len(a & b) / len(a | b)


def true_among(texts: list[str], places: Iterable[int]) -> Pairs:
    """All pairs of these places that reach the threshold."""
    sets = {place: shingles(texts[place]) for place in sorted(places)}
    return {(a, b) for a, b in combinations(sets, 2) if similarity(sets[a], sets[b]) >= THRESHOLD}


def true_pairs(texts: list[str]) -> Pairs:
    """Those inside families, and those of a sample."""
    families = range(0, len(texts) // 2, FAMILY)
    found = [true_among(texts, range(first, min(first + FAMILY, len(texts)))) for first in families]
    sample = random.Random(1).sample(range(len(texts)), min(SAMPLE, len(texts) // 10))
    return set().union(*found, true_among(texts, sample))


def false_pairs(texts: list[str], pairs: Iterable[tuple[int, int]]) -> int:
    """How many of the pairs are below the threshold."""
    return sum(similarity(shingles(texts[a]), shingles(texts[b])) < THRESHOLD for a, b in pairs)


def kept(texts: list[str]) -> Pairs:
    """(text that stays, text that goes)."""
    return {(stays, goes) for goes, stays in near_duplicates(texts, threshold=THRESHOLD).items()}


def found(texts: list[str]) -> Pairs:
    """All pairs."""
    return {(pair.a, pair.b) for pair in similar_pairs(texts, threshold=THRESHOLD)}


def costs(search: Callable[[list[str]], Pairs], count: int) -> tuple[Pairs, float, float]:
    """The pairs, CPU seconds and peak memory in GB, of a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_costs, (search, count))


def _costs(search: Callable[[list[str]], Pairs], count: int) -> tuple[Pairs, float, float]:
    texts = made_texts(count)
    began = time.process_time()
    pairs = search(texts)
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pairs, spent, peak / 1e9


def measure(count: int) -> dict[str, float]:
    """All figures; prints what is not one."""
    texts = made_texts(count)
    true = true_pairs(texts)
    pairs, all_s, all_gb = costs(found, count)
    gone, cpu_s, peak_gb = costs(kept, count)
    print(f"{len(true):,} true pairs, {len(pairs):,} found ({all_s:.1f} CPU s, {all_gb:.2f} GB)")
    staying = set(range(count)) - {goes for _, goes in gone}
    both = sum(a in staying and b in staying for a, b in true)
    print(f"{len(gone):,} texts go; {both:,} true pairs stay whole")
    wrong = false_pairs(texts, pairs) + false_pairs(texts, gone)
    return {"recall": len(true & pairs) / len(true), "false_pairs": wrong, "cpu_s": cpu_s, "peak_gb": peak_gb}


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 texts instead of 100,000")
    parser.add_argument("--texts", type=int, help="another number of texts")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    count = args.texts or (20_000 if args.quick else 100_000)
    print(f"numpy {version('numpy')}, {count:,} texts of 20 to 50 words, threshold {THRESHOLD}")
    figures = measure(count)
    for name, figure in figures.items():
        print(f"{name}: {figure:.4g}")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
