"""Tests that schemes divide ranks and heads, or say with numbers why not, and load without torch."""

import subprocess
import sys

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.scheme import Scheme


@pytest.mark.parametrize(
    ("scheme", "degrees"),
    [
        (Scheme("all_gather"), (8, 1)),
        (Scheme("ring"), (8, 1)),
        (Scheme("ulysses"), (1, 8)),
        (Scheme("ring_ulysses", 2), (4, 2)),
    ],
)
def test_the_degrees_multiply_to_the_ranks(scheme, degrees):
    assert scheme.degrees(8) == degrees


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Scheme("star"), "unknown context scheme 'star'. Use one of all_gather, ring, ulysses, ring_ulysses"),
        (lambda: Scheme("ring_ulysses"), "got ulysses 1, but exchanging heads needs at least 2 ranks"),
        (lambda: Scheme("ring", 2), "ring got ulysses 2, which only ring_ulysses uses"),
        (lambda: Scheme("ring_ulysses", 4).degrees(6), "6 ranks is not divisible by ulysses 4"),
        (lambda: Scheme("ulysses").check_heads(4, 6, 6), "6 attention heads are not divisible by the 4 ranks"),
        (lambda: Scheme("ulysses").check_heads(4, 8, 2), "2 key and value heads are not divisible by the 4 ranks"),
        (lambda: Scheme("ring").check_heads(4, 8, 3), "8 attention heads are not divisible by 3 key and value heads"),
    ],
)
def test_what_does_not_divide_is_refused_with_its_numbers(make, text):
    with pytest.raises(UserError) as error:
        make()
    assert text in str(error.value)


def test_names_and_formulas_load_without_torch():
    imports = "from nemo_vfm.parallel.context import tiles, scheme"
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
