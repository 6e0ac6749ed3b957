"""Tests where an answer is found in a solution, and which answers are equal."""

import time

import pytest

from nemo_vfm.synth.checks.final_answer import final_answer, same_answer

FOUND = [
    (r"So $x = 3$ and thus \boxed{\frac{3}{4}}.", r"\frac{3}{4}"),
    (r"\boxed{1} is wrong. It is \boxed{x^{2}}", "x^{2}"),
    (r"Hence \fbox{12}", "12"),
    (r"Hence $\boxed 7$.", "7"),
    (r"Hence \boxed{12", None),
    ("48/2 = 24\n#### 72", "72"),
    ("#### 1,234\n", "1,234"),
    ("#### Step 1\nx = 2\n#### Final answer\n\nIt is 7.", "7"),
    ("The answer is 5.", "5"),
    ("The answer is 3.5 meters. It took long.", "3.5 meters"),
    ("The final answer is: **12**", "12"),
    ("Answer: B", "B"),
    ("**Answer:** 17", "17"),
    ("The answer is $\\frac{1}{2}$.", "$\\frac{1}{2}$"),
    ("The answer is 3. No, wait: the answer is 4.", "4"),
    ("We add them.\n2 + 3 = 5", "5"),
    ("We add them.\nx + 3 = 5", "5"),
    ("Work.\n\n42", "42"),
    ("Work.\n(2, 3)", "(2, 3)"),
    ("Work.\nSo there are 42 apples left.", "42"),
    ("Work.\nIt costs $1,250 now", "1,250"),
    (r"<think>Perhaps \boxed{3}. The answer is 4.</think> So there are 42 apples left.", "42"),
    ("Perhaps \\boxed{3}.\n</think>\n\nThe answer is 5.", "5"),
    (r"<think>Perhaps \boxed{3}, or", None),
    ("Between 3 and 4 there is none.", None),
    ("I cannot tell.", None),
    ("", None),
]

SAME = [
    ("5", "5.0"), ("1/2", "0.5"), (r"\frac{1}{2}", "1/2"), (r"\dfrac12", "0.5"), (r"-\frac{3}{4}", "-0.75"),
    ("1,234,567", "1234567"), ("1{,}234", "1234"), (r"1\,234", "1234") , ("$1,250.50", "1250.5"), (r"\$5", "5"),
    ("50%", "0.5"), ("50%", "50"), (r"50\%", "50 percent"), ("12.5%", "1/8"), ("5 cm", "5"), ("5cm", "5 cm"),
    (r"5\text{ cm}^2", "5"), ("60 km/h", "60"), ("12 apples", "12"), (r"90^\circ", "90"), ("90°", "90 degrees"),
    ("2 1/3", "7/3"), (r"1\frac{1}{2}", "1.5"), ("-1 1/2", "-1.5"), (r"\sqrt{16}", "4"), (r"\sqrt{2}", "1.41421356"),
    (r"2\sqrt{3}", r"\sqrt{12}"), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), (r"\sqrt[3]{27}", "3"),
    (r"\sqrt{\frac{9}{4}}", "1.5"), (r"2\pi", "6.283185307"), ("√5", r"\sqrt5"), ("2π", r"2\pi"),
    (r"3 \times 10^4", "30000"), ("3e4", "30000"), (r"2^{10}", "1024"), ("2^-2", "0.25"), ("x = 5", "5"),
    ("(B)", "B"), ("b) 12", "b) 12"), ("(b) twelve", "B."), (r"\text{C}", "C"), ("(1, 2)", "(1,2)"),
    (r"\left(\frac{1}{2}, 3\right)", "(0.5, 3)"), ("x = 2 or x = 3", "3, 2"), (r"\{1, 2\}", r"\{2, 1\}"),
    ("2 and 3", "2, 3"), ("[0, 1)", "[0,1)"), ("3 million", "3,000,000"), ("Yes", "true"), ("Monday.", "monday"),
    (r"\(7\)", "7"), ("**7**", "7"), ("7.", "7"), ("−3", "-3"), (r"1+\sqrt{4}", "3"), ("(1+2)/3", "1"), (".5", "0.5"),
    ("about 3.5", "3.5"), ("0", "-0"), ("$0.50", "0.5 dollars"), ("5 m", "5"),
    ("100000000000000000001", "100000000000000000001.0"),
]  # fmt: skip
OTHER = [
    ("5", "6"), ("1/3", "0.333"), ("1/3", "0.33333333"), (r"\pi", "3.14"), ("(1, 2)", "(2, 1)"), ("(1, 2)", "[1, 2]"),
    ("A", "B"), ("yes", "no"), ("1, 2", "1, 2, 3"), ("2, 2", "2, 3"), ("50%", "5"), ("5%", "50%"), ("5", "(5, 6)"),
    ("100000000000000000001", "100000000000000000002"), ("-5", "5"), ("1,234", "1.234"), (r"\sqrt{2}", "1.4142"),
    ("0", "1e-9"), (r"\sqrt{3}", "0"),
]  # fmt: skip
UNREADABLE = [
    ("", "5"), ("x^2 + 1", "5"), ("5x", "5"), ("five", "5"), ("B", "5"), ("Monday", "Tuesday"), ("1/0", "5"),
    (r"\frac{1}{", "5"), ("9^9^9", "5"), ("(9^64)^64^9", "1"), ("2^(1/0)", "1"), (r"\sqrt{-1}", "1"), ("9" * 600, "9"),
    ("(" * 200 + "1", "1"), ("5 and if", "5"), ("0^-1", "1"), ("10^400.5", "1"),
    ("(99999999998/99999999999)^9999", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("solution", "answer"), FOUND)
def test_the_answer_is_found(solution, answer):
    assert final_answer(solution) == answer


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_answers_are_equal_from_both_sides(one, other):
    assert same_answer(one, other) is True and same_answer(other, one) is True


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_answers_differ(one, other):
    assert same_answer(one, other) is False and same_answer(other, one) is False


@pytest.mark.parametrize(("one", "other"), UNREADABLE)
def test_what_cannot_be_read_is_neither_equal_nor_different(one, other):
    assert same_answer(one, other) is None and same_answer(other, one) is None


@pytest.mark.parametrize(
    "piece", ["1,", "(", r"\frac{1}{", "answer is ", r"\boxed{", "= 1 ", "1 ", ". ", "#### ", "\n"]
)
def test_a_long_solution_is_read_at_once(piece):
    begun = time.process_time()
    final_answer(piece * 20_000)
    same_answer(piece * 20_000, "1")
    same_answer(piece * 60, "1")
    assert time.process_time() - begun < 2
