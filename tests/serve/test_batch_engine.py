"""Tests that texts of a running batch are bitwise what they are alone, and that their room is bounded and freed."""

import random

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.language.generation import generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.blocks.text.rope_scaling import LongRope
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.models.gpt import GPT
from nemo_vfm.serve.continuous.batch_engine import BatchEngine, ServedText
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom, RoomSpan, SpanAllocator, bytes_per_token
from nemo_vfm.serve.continuous.model_passes import ModelPasses, invariant_row_counts, rows_for
from nemo_vfm.serve.continuous.text_request import TextEnding, TextRequest, TokenResult

GREEDY = Choice(temperature=0)
NUCLEUS = Choice(temperature=1.5, top_p=0.9)


class Recorder:
    def __init__(self, most: int = 10**9) -> None:
        self.given: list[TokenResult] = []
        self.new: list[TokenResult] = []
        self.ending: TextEnding | None = None
        self.most = most

    def prompt(self, results: list[TokenResult]) -> None:
        self.given += results

    def token(self, result: TokenResult) -> bool:
        self.new.append(result)
        return len(self.new) < self.most

    def end(self, ending: TextEnding) -> None:
        assert self.ending is None, "a text ends once"
        self.ending = ending

    @property
    def tokens(self) -> list[int]:
        return [result.token for result in self.new]


@pytest.fixture(scope="module")
def passes() -> ModelPasses:
    """512 inputs a product: with fewer, this machine's library rounds 1 row as it does 16."""
    torch.manual_seed(0)
    model = GPT(vocab=300, width=512, depth=2, heads=8, groups=4, mlp_hidden=528, init_std=0.06).eval()
    return ModelPasses(model, room(model, 600), 16)


def room(model: GPT, tokens: int) -> KeyValueRoom:
    return KeyValueRoom(model, (tokens + 0.5) * bytes_per_token(model) / 1e9)


def served(engine: BatchEngine, requests: list[TextRequest]) -> list[Recorder]:
    recorders = [Recorder() for _ in requests]
    for request, recorder in zip(requests, recorders, strict=True):
        engine.submit(ServedText(request, recorder))
    while engine.step():
        pass
    return recorders


def requests(count: int) -> list[TextRequest]:
    """Of all lengths; every third is scored, every second is drawn."""
    draw = random.Random(0)
    return [
        TextRequest(
            tuple(draw.randrange(300) for _ in range(draw.randint(1, 40))), draw.randint(0, 24),
            (GREEDY, NUCLEUS)[number % 2], number, score_prompt=number % 3 == 0, num_top=(2, None)[number % 3 > 0],
        )
        for number in range(count)
    ]  # fmt: skip


def test_a_text_is_bitwise_the_same_alone_and_among_any_neighbours(passes: ModelPasses) -> None:
    asked = requests(24)
    crowd = served(BatchEngine(passes, max_running=16, piece=16), asked)
    few = served(BatchEngine(passes, max_running=5, piece=16), asked[::-1])[::-1]
    alone = [served(BatchEngine(passes, piece=16), [request])[0] for request in asked]
    for one, two, three in zip(crowd, few, alone, strict=True):
        assert (one.given, one.new) == (two.given, two.new) == (three.given, three.new)
    assert sum(len(one.new) for one in crowd) > 100


def test_a_text_in_windows_with_experts_is_the_same_alone_and_among_neighbours_and_by_generate() -> None:
    torch.manual_seed(0)
    rope = TextRope(long_context=LongRope((1.0,) * 32, (3.0,) * 32, trained_on=24))  # some texts grow longer
    window, experts = SlidingWindow(9, (1,), TextRope(theta=100.0)), Experts(4, per_token=2, hidden=64)
    model = GPT(vocab=300, width=512, depth=2, heads=8, groups=4, mlp_hidden=528, init_std=0.06, rope=rope,
                window=window, experts=experts)  # fmt: skip
    passes = ModelPasses(model.eval(), room(model, 600), 16)
    asked = requests(8)
    crowd = served(BatchEngine(passes, piece=16), asked)
    for request, one in zip(asked, crowd, strict=True):
        (alone,) = served(BatchEngine(passes, piece=16), [request])
        assert (one.given, one.new) == (alone.given, alone.new)
        if request.max_new:
            (text,) = generate(passes.model, [request.tokens], max_new=request.max_new, choice=request.choice,
                               seeds=[request.seed])  # fmt: skip
            assert one.tokens == text


def test_texts_are_those_that_generate_writes(passes: ModelPasses) -> None:
    texts = [[1, 2, 3, 4, 5], [7], list(range(40))]
    asked = [TextRequest(tuple(text), 12, NUCLEUS, seed) for seed, text in enumerate(texts)]
    expected = generate(passes.model, texts, max_new=12, choice=NUCLEUS, seeds=[0, 1, 2])
    assert [one.tokens for one in served(BatchEngine(passes, piece=16), asked)] == expected


def test_prompts_get_the_log_probabilities_of_one_whole_pass(passes: ModelPasses) -> None:
    tokens = tuple(range(3, 43))
    (found,) = served(BatchEngine(passes, piece=16), [TextRequest(tokens, 0, GREEDY, 0, score_prompt=True, num_top=3)])
    cache = passes.model.cache(torch.zeros(1, dtype=torch.long), 40, torch.float32)
    with torch.no_grad():
        logs = passes.model.scores(torch.tensor([tokens]), cache, last=False)[0].log_softmax(1)
    assert [result.token for result in found.given] == list(tokens) and found.given[0].logprob is None
    own = [float(logs[place, token]) for place, token in enumerate(tokens[1:])]
    assert [result.logprob for result in found.given[1:]] == pytest.approx(own, abs=1e-5)
    best = logs[:-1].topk(3).indices.tolist()
    assert [[token for token, _ in result.top] for result in found.given[1:]] == best
    assert found.ending == "length" and not found.new


def test_stop_tokens_and_listeners_end_a_text(passes: ModelPasses) -> None:
    (free,) = served(BatchEngine(passes), [TextRequest((1, 2), 12, NUCLEUS, 3)])
    stop = free.tokens[5]
    asked = TextRequest((1, 2), 12, NUCLEUS, 3, stop=frozenset([stop]))
    (stopped,) = served(BatchEngine(passes), [asked])
    assert (stopped.tokens, stopped.ending) == (free.tokens[: free.tokens.index(stop)], "stop")
    engine, recorder = BatchEngine(passes), Recorder(most=4)
    engine.submit(ServedText(TextRequest((1, 2), 12, NUCLEUS, 3), recorder))
    while engine.step():
        pass
    assert (recorder.tokens, recorder.ending, free.ending) == (free.tokens[:4], "stop", "length")


@pytest.mark.slow
def test_the_room_is_never_exceeded_and_comes_back(passes: ModelPasses) -> None:
    engine, address = BatchEngine(passes, max_running=16), passes.room.pool.data_ptr()
    recorders = [Recorder() for _ in range(20)]
    for number, recorder in enumerate(recorders):
        engine.submit(ServedText(TextRequest((1,) * 100, 60, GREEDY, number), recorder))
    most = 0
    while engine.step():
        most = max(most, len(engine._reading) + len(engine._running))
    assert most == 600 // 159 and all(len(one.tokens) == 60 for one in recorders)
    assert passes.room.spans.num_free == 600 and passes.room.pool.data_ptr() == address


def test_short_texts_do_not_overtake_a_long_one(passes: ModelPasses) -> None:
    engine, recorders = BatchEngine(passes, piece=512), [Recorder() for _ in range(3)]
    for length, recorder in zip((300, 400, 2), recorders, strict=True):
        engine.submit(ServedText(TextRequest((1,) * length, 5, GREEDY, 0), recorder))
    for _ in range(3):
        engine.step()
    assert [len(one.new) > 0 for one in recorders] == [True, False, False]
    while engine.step():
        pass
    assert [one.ending for one in recorders] == ["length"] * 3


def test_a_cancelled_text_frees_its_room_wherever_it_is(passes: ModelPasses) -> None:
    engine = BatchEngine(passes, piece=16)
    texts = [ServedText(TextRequest((1,) * length, 50, GREEDY, 0), Recorder()) for length in (4, 60, 500, 500)]
    for text in texts:
        engine.submit(text)
    engine.step()
    assert [len(queue) for queue in (engine._running, engine._reading, engine._waiting)] == [1, 1, 2]
    for text in texts:
        engine.cancel(text)
        engine.cancel(text)
    assert passes.room.spans.num_free == 600 and not engine.step()
    assert [text.listener.ending for text in texts] == ["cancelled"] * 4


def test_running_texts_go_on_while_a_long_prompt_is_read(passes: ModelPasses) -> None:
    engine, first, second = BatchEngine(passes, piece=16), Recorder(), Recorder()
    engine.submit(ServedText(TextRequest((1,), 50, GREEDY, 0), first))
    engine.step()
    engine.submit(ServedText(TextRequest((2,) * 160, 5, GREEDY, 0), second))
    for _ in range(9):
        engine.step()
    assert len(first.new) == 10 and not second.new


def test_scores_that_are_not_finite_fail_their_own_text(passes: ModelPasses) -> None:
    engine, recorders = BatchEngine(passes), [Recorder(), Recorder()]
    before = passes.model.embedding.weight.data[9].clone()
    passes.model.embedding.weight.data[9] = float("nan")
    try:
        for first, recorder in zip((9, 1), recorders, strict=True):
            engine.submit(ServedText(TextRequest((first,), 3, GREEDY, 0), recorder))
        while engine.step():
            pass
    finally:
        passes.model.embedding.weight.data[9] = before
        passes.room.pool.zero_()
    assert [one.ending for one in recorders] == ["failed", "length"]


def test_one_row_is_filled_up_only_where_it_would_round_otherwise() -> None:
    values = torch.arange(16.0)[:, None]

    def probe(order: list[int]) -> torch.Tensor:
        return values[order] + (0.5 if len(order) in (1, 4) else 0)

    assert invariant_row_counts(probe, 12) == (2, 6, 8, 10, 12)
    assert [rows_for((2, 6, 8, 12), texts) for texts in (1, 2, 3, 6, 9)] == [2, 2, 6, 6, 12]


def test_batches_whose_order_matters_are_not_used() -> None:
    def probe(order: list[int]) -> torch.Tensor:
        place = torch.arange(len(order)) if len(order) > 6 else 0
        return (torch.tensor(order) + place)[:, None]

    assert invariant_row_counts(probe, 12)[-1] == 6


def test_spans_do_not_overlap_and_join_when_they_come_back() -> None:
    spans = SpanAllocator(10)
    one, two, three = (spans.take(3) for _ in range(3))
    assert (one, two, three) == (RoomSpan(0, 3), RoomSpan(3, 3), RoomSpan(6, 3)) and spans.take(2) is None
    spans.give_back(one)
    assert spans.take(4) is None and spans.num_free == 4
    spans.give_back(two)
    assert spans.take(6) == RoomSpan(0, 6) and spans.take(1) == RoomSpan(9, 1)


def test_a_room_for_nothing_is_refused(passes: ModelPasses) -> None:
    with pytest.raises(UserError, match="is too small for any text: one token takes 4,096 bytes"):
        KeyValueRoom(passes.model, 1e-6)
