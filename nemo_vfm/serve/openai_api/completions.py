"""Answers `/v1/completions`."""

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answer_text import Piece, TokenNames, TokenText, WrittenToken
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.openai_api.answer_stream import AnswerPlan, ApiEndpoint, ChoicesResponse
from nemo_vfm.serve.openai_api.request_fields import CompletionRequest


class Completions(ApiEndpoint):
    """The endpoint."""

    async def answer(self, body: dict[str, Json], request: Request) -> Response:
        """As JSON or as a stream. A long request takes turns with others after each prompt."""
        served = self.served
        asked, names = await self.threads.run(request, partial(self._check, body))
        prompts = [await self.threads.run(request, partial(self._tokens, prompt)) for prompt in asked.prompt]
        self.require_places(max(map(len, prompts)), asked.max_tokens)
        choice, rules, stop = asked.choice(), asked.rules(), served.stop | {*asked.stop_token_ids}
        texts = tuple(
            TextRequest(tokens, asked.max_tokens, choice, asked.seed_of(number), stop, rules=rules,
                        score_prompt=asked.echo and asked.logprobs is not None, num_top=asked.logprobs)
            for tokens in prompts for number in range(asked.n)
        )  # fmt: skip
        shifts: dict[int, int] = {}  # characters of a choice in front of its new text

        def write_choice(number: int, piece: Piece, is_first: bool) -> dict[str, Json]:
            text, tokens = "", list[WrittenToken]()
            if is_first and asked.echo:
                offsets, writer = [], TokenText(served.decode)
                for token in texts[number].tokens:
                    offsets.append(len(text))
                    text += writer.add(token)
                text += writer.rest()
                if piece.given:
                    tokens = [WrittenToken(*pair) for pair in zip(piece.given, offsets, strict=True)]
            shift = shifts.setdefault(number, len(text))
            tokens += [WrittenToken(one.result, one.offset + shift) for one in piece.tokens]
            return {"index": number, "text": text + piece.text, "finish_reason": piece.ending,
                    "logprobs": None if names is None else _logprobs(tokens, names)}  # fmt: skip

        plan = AnswerPlan(texts, asked, sum(map(len, prompts)), "cmpl", "text_completion", write_choice)
        return ChoicesResponse(self, plan, request)

    def _check(self, body: dict[str, Json]) -> tuple[CompletionRequest, TokenNames | None]:
        asked = CompletionRequest.read(body, self.served.model.vocab, self.served.generation)
        self.require_countable(len(asked.prompt) * asked.n)
        for prompt in asked.prompt:
            if isinstance(prompt, str):
                self.require_readable(prompt, "prompt")
        return asked, None if asked.logprobs is None else self.served.names

    def _tokens(self, prompt: str | list[int]) -> tuple[int, ...]:
        """An empty text begins a document."""
        if not isinstance(prompt, str):
            return tuple(prompt)
        return tuple(self.served.tokenizer.encode([prompt])[0]) or (self.served.tokenizer.end(),)


def _logprobs(tokens: Sequence[WrittenToken], names: TokenNames) -> dict[str, Json]:
    results = [token.result for token in tokens]
    return {
        "tokens": [names.name(one.token) for one in results],
        "token_logprobs": [one.logprob for one in results],
        # By their names, likeliest first, the token itself among them; None where nothing came before it.
        "top_logprobs": [
            None if one.logprob is None
            else {names.name(token): logprob for token, logprob in (*one.top, (one.token, one.logprob))}
            for one in results
        ],
        "text_offset": [token.offset for token in tokens],
    }  # fmt: skip
