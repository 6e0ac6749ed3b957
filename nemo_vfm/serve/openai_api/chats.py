"""Answers `/v1/chat/completions`."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answer_text import Piece, TokenNames
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.openai_api.answer_stream import AnswerPlan, ApiEndpoint, ChoicesResponse, ReadingThreads
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import ChatRequest
from nemo_vfm.serve.served_model import ServedModel


class Chats(ApiEndpoint):
    """The endpoint.

    Args:
        served: the model.
        engine: runs it.
        threads: read its requests.
        split_thoughts: whether answers have thoughts, <think>...</think>, in a field of their own.
    """

    def __init__(
        self, served: ServedModel, engine: EngineThread, threads: ReadingThreads, *, split_thoughts: bool
    ) -> None:
        super().__init__(served, engine, threads)
        self._split_thoughts = split_thoughts

    async def answer(self, body: dict[str, Json], request: Request) -> Response:
        return ChoicesResponse(self, await self.threads.run(request, partial(self._plan, body)), request)

    def _plan(self, body: dict[str, Json]) -> AnswerPlan:
        served, chat = self.served, self.served.chat
        asked = ChatRequest.read(body, served.model.vocab, served.generation)
        if chat is None:
            raise ApiError(400, f"{served.name} has no chat format (its folder has no chat template); use "
                                f"/v1/completions")  # fmt: skip
        self.require_readable([*asked.messages, asked.chat_template_kwargs], "messages")
        try:
            tokens = tuple(
                chat.tokens(asked.messages, add_generation_prompt=True, variables=asked.chat_template_kwargs)
            )
        except DataError as error:
            raise ApiError(400, f"messages: {error}", param="messages") from None
        self.require_places(len(tokens), asked.max_tokens or 1)
        self.require_countable(asked.n)
        max_new = asked.max_tokens or max(1, min(served.context, self.engine.max_tokens()) - len(tokens))
        choice, rules, num_top = asked.choice(), asked.rules(), (asked.top_logprobs or 0) if asked.logprobs else None
        stop = served.stop | chat.stop_tokens() | {*asked.stop_token_ids}
        texts = tuple(
            TextRequest(tokens, max_new, choice, asked.seed_of(number), stop, num_top=num_top, rules=rules)
            for number in range(asked.n)
        )
        names = served.names if asked.logprobs else None

        def write_choice(number: int, piece: Piece, is_first: bool) -> dict[str, Json]:
            thought = {"reasoning_content": piece.thought} if piece.thought else {}
            if asked.stream:  # the first part says who speaks
                text = {"content": piece.text} if piece.text or not piece.thought else {}
                said: dict[str, Json] = {"delta": ({"role": "assistant"} if is_first else {}) | thought | text}
            else:
                said = {"message": {"role": "assistant", "content": piece.text, "refusal": None, **thought}}
            return {"index": number, **said, "finish_reason": piece.ending,
                    "logprobs": None if names is None else _logprobs(piece, names)}  # fmt: skip

        kind = "chat.completion.chunk" if asked.stream else "chat.completion"
        return AnswerPlan(texts, asked, len(tokens), "chatcmpl", kind, write_choice, self._split_thoughts)


def _logprobs(piece: Piece, names: TokenNames) -> dict[str, Json]:
    def logprob_of(token: int, logprob: float | None) -> dict[str, Json]:
        own = names.bytes_of(token)
        return {"token": names.name(token), "logprob": logprob, "bytes": None if own is None else list(own)}

    results = [token.result for token in piece.tokens]
    return {"content": [{**logprob_of(one.token, one.logprob), "top_logprobs": [logprob_of(*pair) for pair in one.top]}
                        for one in results]}  # fmt: skip
