"""Continues many texts with one model; texts join and leave the running batch at any token.

Each step reads a piece of the prompts that are new, and then gives every running text its next token. Texts are
admitted in the order of their arrival, once their whole length fits into the room for keys and values. So no running
text is ever turned out, and the room is never exceeded.
Shape letters: N texts or places, V vocabulary.
"""

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.core.seed import generator
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.key_value_room import RoomSpan
from nemo_vfm.serve.continuous.model_passes import ModelPasses
from nemo_vfm.serve.continuous.text_request import (
    RuledText,
    TextEnding,
    TextListener,
    TextRequest,
    TokenResult,
    TokenRules,
)


class ServedText:
    """One text between its arrival and its end."""

    def __init__(self, request: TextRequest, listener: TextListener) -> None:
        self.request, self.listener = request, listener
        self.span: RoomSpan | None = None
        self.done, self.num_new, self.next_token = 0, 0, -1  # tokens that are in; tokens added; the one to read next
        self.ended = False
        self._chances: list[float] | None = None
        has_rules = request.rules != TokenRules()
        self.ruled = RuledText(request.rules, request.tokens, request.stop) if has_rules else None

    def chance(self) -> float:
        """The number from [0, 1) that draws the next token; all follow from the seed, as in `generate`."""
        if self.request.choice.temperature == 0:
            return 0.0  # nothing is drawn
        if self._chances is None:
            draws = torch.rand(self.request.max_new, generator=generator(self.request.seed, "words"))
            self._chances = draws.tolist()
        return self._chances[self.num_new]


class BatchEngine:
    """Runs on one thread; `submit` and `cancel` belong to that thread, too.

    Args:
        passes: the model, with its room.
        max_running: texts that are continued at once.
        piece: tokens of a prompt that are read in one pass; a text's pieces do not depend on its neighbours. Running
            texts wait for about one piece a step.
    """

    def __init__(self, passes: ModelPasses, *, max_running: int = 16, piece: int = 128) -> None:
        if min(max_running, piece) < 1:
            raise ValueError(f"max_running ({max_running}) and piece ({piece}) must be at least 1")
        self.passes, self.max_running, self.piece = passes, max_running, piece
        self.num_tokens = 0  # that were read or written so far
        self._waiting: deque[ServedText] = deque()
        self._reading: deque[ServedText] = deque()
        self._running: list[ServedText] = []

    def submit(self, text: ServedText) -> None:
        """Let a text wait for its room. The empty room must hold its `places`."""
        self._waiting.append(text)

    def cancel(self, text: ServedText, ending: TextEnding = "cancelled") -> None:
        """End a text; its room is free at once."""
        if text.ended:
            return
        for queue in (self._waiting, self._reading, self._running):
            if text in queue:
                queue.remove(text)
        self._end(text, ending)

    @torch.inference_mode()
    def step(self) -> bool:
        """Give every running text a token; False where there was nothing to do."""
        while self._waiting and len(self._reading) + len(self._running) < self.max_running:
            span = self.passes.room.spans.take(self._waiting[0].request.places)
            if span is None:
                break  # those behind wait, too: else short texts would keep a long one out for ever
            self._reading.append(self._waiting.popleft())
            self._reading[-1].span = span
        worked = bool(self._reading or self._running)
        most = self.passes.max_rows
        groups = [self._running[start : start + most] for start in range(0, len(self._running), most)]
        budget = self.piece
        if groups and self._reading and self.passes.can_join(len(groups[0]), len(self._next_piece()[1])):
            # One pass for a piece of a prompt and the next token of each text that runs.
            group, (text, tokens) = groups.pop(0), self._next_piece()
            assert text.span is not None, "a text is read after it was admitted"
            spans = [(one.span, one.done) for one in group if one.span is not None]
            new = [one.next_token for one in group]
            scores_NV, x_SD = self.passes.joint(spans, new, text.span, text.done, tokens)
            self._advance(group, scores_NV)
            self._take_piece(text, tokens, x_SD)
            budget -= len(tokens)
        while self._reading and budget > 0:  # a text that has been read runs from the next step
            text, tokens = self._next_piece()
            assert text.span is not None, "a text is read after it was admitted"
            self._take_piece(text, tokens, self.passes.prompt(text.span, text.done, tokens))
            budget -= len(tokens)
        for group in groups:
            spans = [(text.span, text.done) for text in group if text.span is not None]
            self._advance(group, self.passes.decode(spans, [text.next_token for text in group]))
        self._running = [text for text in self._running if not text.ended]
        return worked

    def fail_all(self) -> None:
        """End every text as failed."""
        for text in (*self._waiting, *self._reading, *self._running):
            self.cancel(text, "failed")

    def _next_piece(self) -> tuple[ServedText, tuple[int, ...]]:
        text = self._reading[0]
        return text, text.request.tokens[text.done : text.done + self.piece]

    def _take_piece(self, text: ServedText, tokens: tuple[int, ...], x_SD: Tensor) -> None:
        """Go on after a piece whose vectors are there."""
        request = text.request
        if request.score_prompt:
            # Each row predicts the token after it; the prompt's last row predicts none of the prompt.
            following = request.tokens[text.done + 1 : text.done + len(tokens) + 1]
            results = [TokenResult(tokens[0])] if text.done == 0 else []
            scores = self.passes.scores(x_SD[: len(following)]) if following else None
            if scores is not None and not all(finite_rows(scores)):
                self._fail(text)
            else:
                results += [] if scores is None else token_results(scores, following, request.num_top or 0)
                text.listener.prompt(results)
        text.done += len(tokens)
        self.num_tokens += len(tokens)
        if text.done == len(request.tokens) and not text.ended:  # the prompt's last vector says what is after it
            if request.max_new:
                self._extend([text], self.passes.last_scores(x_SD[-1]))
            elif not request.wants_outputs:
                self._end(text, "length")
            elif all(map(math.isfinite, outputs := self.passes.last_scores(x_SD[-1])[0].float().tolist())):
                text.listener.outputs(outputs)
                self._end(text, "length")
            else:
                self._fail(text)
        if text.ended or text.done == len(request.tokens):
            self._reading.popleft()
            self._running += [] if text.ended else [text]

    def _advance(self, texts: list[ServedText], scores_NV: Tensor) -> None:
        for text in texts:
            text.done += 1
        self._extend(texts, scores_NV)

    def _extend(self, texts: list[ServedText], scores_NV: Tensor) -> None:
        ruled_NV = scores_NV
        if any(text.ruled is not None for text in texts):  # in fp32: bf16 would lose a small penalty
            rows = zip(texts, scores_NV.float(), strict=True)
            ruled_NV = torch.stack([row if text.ruled is None else text.ruled.apply(row) for text, row in rows])
        finite = finite_rows(ruled_NV)
        for text, is_finite in zip(texts, finite, strict=True):
            if not is_finite:
                self._fail(text)
        if not all(finite):
            texts = [text for text in texts if not text.ended]
            scores_NV, ruled_NV = scores_NV[finite], ruled_NV[finite]
        tokens = choose_tokens(ruled_NV, [text.request.choice for text in texts], [text.chance() for text in texts])
        self.num_tokens += len(tokens)
        for row, (text, token) in enumerate(zip(texts, tokens, strict=True)):
            request = text.request
            if token in request.stop:
                self._end(text, "stop")
                continue
            text.next_token, text.num_new = token, text.num_new + 1
            if text.ruled is not None:
                text.ruled.add(token)
            result = TokenResult(token)
            if request.num_top is not None:
                (result,) = token_results(scores_NV[row : row + 1], [token], request.num_top)
            if not text.listener.token(result):
                self._end(text, "stop")
            elif text.num_new == request.max_new:
                self._end(text, "length")

    def _fail(self, text: ServedText) -> None:
        log.warn("the scores after a text are not finite; the model is not trained, or damaged")
        self._end(text, "failed")

    def _end(self, text: ServedText, ending: TextEnding) -> None:
        text.ended = True
        if text.span is not None:
            self.passes.room.spans.give_back(text.span)
            text.span = None
        text.listener.end(ending)


def choose_tokens(scores_NV: Tensor, choices: Sequence[Choice], chances: Sequence[float]) -> list[int]:
    """The next token of each text, by finite scores and a number from [0, 1) for each.

    Texts with the same settings are drawn in one call.
    """
    groups: dict[tuple[float, int | None, float, float], list[int]] = {}
    for row, choice in enumerate(choices):
        settings = choice.temperature, choice.top_k, choice.top_p, choice.min_p
        groups.setdefault(settings if choice.temperature else (0.0, None, 1.0, 0.0), []).append(row)
    tokens = [0] * len(choices)
    for rows in groups.values():
        scores = scores_NV if len(rows) == len(choices) else scores_NV[rows]
        uniform, choice = torch.tensor([chances[row] for row in rows], device=scores.device), choices[rows[0]]
        found = scores.argmax(1) if choice.temperature == 0 else choice.draw(scores, uniform)
        for row, token in zip(rows, found.tolist(), strict=True):
            tokens[row] = token
    return tokens


def token_results(scores_NV: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenResult]:
    """Each place's token with its log-probability, log softmax(scores), and the likeliest of all."""
    logs_NV = scores_NV.float().log_softmax(1)
    own = logs_NV.gather(1, torch.tensor(tokens, device=logs_NV.device)[:, None])[:, 0].tolist()
    values, words = (found.tolist() for found in logs_NV.topk(min(num_top, logs_NV.shape[1]), dim=1))
    return [
        TokenResult(token, logprob, tuple(zip(top_words, top_values, strict=True)))
        for token, logprob, top_words, top_values in zip(tokens, own, words, values, strict=True)
    ]


def finite_rows(scores_NV: Tensor) -> list[bool]:
    """Which rows have a finite largest score; a row with NaN has none."""
    return [bool(finite) for finite in scores_NV.amax(1).isfinite().tolist()]
