"""What a client asked for: the bodies of OpenAI's completions and chat API, and the errors they are
refused with."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from phasemeter.engines.simulated.plan import Ask
from phasemeter.engines.simulated.script import Behaviour, behaviour_of
from phasemeter.record.errors import InputError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MOST_OUTPUT_TOKENS = 1_000_000
"""Of one request: every token's time is laid out before the first is sent, and nothing else is served meanwhile."""
_DEFAULT_MAX_TOKENS = 16


class ApiError(Exception):
    """The request is refused with this status; `param` names the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


class Limits(Struct, frozen=True):
    """What the server serves: model names, tokens that a chat template adds, and the context length if
    limited."""

    models: tuple[str, ...]
    template_tokens: int = 0
    max_context_tokens: int | None = None


class Wanted(Struct, frozen=True):
    """A request that can be served."""

    ask: Ask
    model: str
    streaming: bool
    own: Behaviour


def read_body(path: str, body: bytes, limits: Limits) -> Wanted:
    """Read a request's body. Raises ApiError for everything that a real server would refuse."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise ApiError(400, "the body must be a JSON object")
    table = cast("dict[str, Any]", decoded)
    model = _model(table, limits)
    chat = path == CHAT
    prompt_tokens = _chat_tokens(table) + limits.template_tokens if chat else _prompt_tokens(table)
    max_tokens = _max_tokens(table)
    if table.get("n") not in (None, 1):
        raise ApiError(400, "only n = 1 is simulated", "n")
    total = prompt_tokens + max_tokens
    if limits.max_context_tokens is not None and total > limits.max_context_tokens:
        raise ApiError(
            400,
            f"This model's maximum context length is {limits.max_context_tokens} tokens. "
            f"You asked for {total}: {prompt_tokens} in the prompt and {max_tokens} in the completion.",
            "max_tokens",
        )
    options = _options(table)
    return Wanted(
        ask=Ask(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            chat=chat,
            include_usage=_flag(options, "include_usage"),
            continuous_usage=_flag(options, "continuous_usage_stats"),
        ),
        model=model,
        streaming=_flag(table, "stream"),
        own=_own(table),
    )


def _model(table: dict[str, Any], limits: Limits) -> str:
    model = table.get("model")
    if model is None:
        return limits.models[0]
    if not isinstance(model, str):
        raise ApiError(400, "model must be a string", "model")
    if model not in limits.models:
        raise ApiError(404, f"The model `{model}` does not exist.", "model")
    return model


def _prompt_tokens(table: dict[str, Any]) -> int:
    """Tokens of a prompt: one a token id, one a byte of UTF-8 text."""
    if table.get("prompt") is None:
        raise ApiError(400, "Field required: prompt", "prompt")
    prompt: object = table["prompt"]
    if isinstance(prompt, list):
        items = cast("list[object]", prompt)
        if items and all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return len(items)
        if len(items) > 1:
            raise ApiError(400, "only one prompt a request is simulated", "prompt")
        prompt = items[0] if items else ""
        if isinstance(prompt, list):
            return _prompt_tokens({"prompt": prompt})
    if not isinstance(prompt, str):
        raise ApiError(400, "prompt must be text, token ids, or a list with one of these", "prompt")
    if not prompt:
        raise ApiError(400, "the prompt is empty", "prompt")
    return len(prompt.encode())


def _chat_tokens(table: dict[str, Any]) -> int:
    """One token a byte of UTF-8 of the messages' text."""
    if table.get("messages") is None:
        raise ApiError(400, "Field required: messages", "messages")
    messages: object = table["messages"]
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list of at least one message", "messages")
    return sum(_message_bytes(message) for message in cast("list[object]", messages))


def _message_bytes(message: object) -> int:
    if not isinstance(message, dict) or "role" not in message:
        raise ApiError(400, "a message must be an object with role and content", "messages")
    content = cast("dict[str, object]", message).get("content")
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode())
    if isinstance(content, list):
        texts = [cast("dict[str, object]", part).get("text") for part in content if isinstance(part, dict)]  # pyright: ignore[reportUnknownVariableType]
        if all(isinstance(text, str) for text in texts):
            return sum(len(cast("str", text).encode()) for text in texts)
    raise ApiError(400, "content must be text or a list of text parts", "messages")


def _max_tokens(table: dict[str, Any]) -> int:
    name = "max_completion_tokens" if table.get("max_completion_tokens") is not None else "max_tokens"
    value = table.get(name)
    if value is None:
        return _DEFAULT_MAX_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ApiError(400, f"{name} must be a whole number of at least 1", name)
    if value > MOST_OUTPUT_TOKENS:
        raise ApiError(400, f"{name} of more than {MOST_OUTPUT_TOKENS} is not simulated", name)
    return value


def _options(table: dict[str, Any]) -> dict[str, Any]:
    options = table.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", "stream_options")
    return cast("dict[str, Any]", options)


def _flag(table: dict[str, Any], name: str) -> bool:
    value = table.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", name)
    return bool(value)


def _own(table: dict[str, Any]) -> Behaviour:
    wish = table.get("x_simulate")
    if wish is None:
        return Behaviour()
    try:
        return behaviour_of(wish)
    except InputError as error:
        raise ApiError(400, str(error), "x_simulate") from None
