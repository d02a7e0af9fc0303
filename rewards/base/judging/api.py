"""A judge at an address: OpenAI's chat protocol by the `openai` client, many questions at once, with deadlines."""

import base64
import io
import math
import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal

from mmrl.core.contracts import ConfigError

from .questions import Question, Reply, UnansweredError
from .settings import JudgeModel

if TYPE_CHECKING:
    from PIL.Image import Image

LIKELIEST = 20  # first tokens whose probabilities are asked for: the most that the protocol allows
MAX_BYTES = 2**24  # of one response: a longer one answers no question
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds before a question is asked again; it doubles
_WRONG = {401: "the key is refused", 403: "it is forbidden", 404: "there is no such model or path"}


class ApiJudge:
    """Asks a model at an address; `ask` may be called from several threads."""

    def __init__(self, settings: JudgeModel) -> None:
        """Raises ConfigError where the package openai is missing."""
        try:
            import openai
        except ImportError as error:
            raise ConfigError("a judge with a url needs the package openai: pip install 'mmrl[judges]'") from error
        self._openai, self._settings = openai, settings
        self._refused: set[str] = set()  # options that this address does not take
        # time of the first failure after which nothing was answered: an outage is waited for once, not by each question
        self._silent_since: float | None = None

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        """Returns the reply to each question, or why there is none that counts.

        Raises ConfigError where the address refuses all questions alike: a wrong key, model or path.
        """
        with start_blocking_portal() as portal:
            return portal.call(self._ask_all, list(questions), list(seeds))

    async def _ask_all(self, questions: list[Question], seeds: list[int]) -> list[Reply | UnansweredError]:
        replies: list[Any] = [None] * len(questions)
        limit = anyio.Semaphore(self._settings.concurrency)
        wrong: list[ConfigError] = []

        async def one(place: int) -> None:
            async with limit:
                if not wrong:
                    try:
                        replies[place] = await self._patiently(client, questions[place], seeds[place])
                    except ConfigError as error:
                        wrong.append(error)

        transport = _Bounded(
            httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0))
        )
        plain = httpx2.AsyncClient(transport=transport, timeout=None, trust_env=False)
        key = os.environ.get(self._settings.key_variable) or "none"
        async with (
            self._openai.AsyncOpenAI(
                base_url=self._settings.url, api_key=key, max_retries=0, timeout=None, http_client=plain
            ) as client,
            anyio.create_task_group() as tasks,
        ):
            for place in range(len(questions)):
                tasks.start_soon(one, place)
        if wrong:
            raise wrong[0]
        return replies

    async def _patiently(self, client: Any, question: Question, seed: int) -> Reply | UnansweredError:
        """Asks until there is a reply, the address refuses, or its outage has lasted too long."""
        openai, end, pause = self._openai, time.monotonic() + self._settings.outage_seconds, _FIRST_WAIT
        while True:
            wait = pause
            try:
                with anyio.fail_after(self._settings.deadline_seconds):
                    reply = await self._once(client, question, seed)
                self._silent_since = None
                return reply
            except UnansweredError as error:
                self._silent_since = None
                return error
            except TimeoutError:
                why = f"no whole reply within {self._settings.deadline_seconds:g} seconds"
            except openai.APIStatusError as error:
                status, why = error.status_code, f"HTTP {error.status_code}: {str(error)[:300]}"
                if status in _WRONG:
                    raise ConfigError(f"the judge at {self._settings.url}: {_WRONG[status]} ({why})") from error
                if status == 400 and self._adapt(str(error)):
                    continue
                if status not in (408, 409, 429) and status < 500:
                    return UnansweredError(why)
                wait = max(pause, _header_wait(error.response.headers.get("retry-after")))
            except openai.APIConnectionError as error:
                if isinstance(error.__cause__, UnansweredError):  # of `_Bounded`: it would answer so again
                    return error.__cause__
                why = f"no connection: {error.__cause__ or error}"
            except (openai.APIError, ValueError) as error:  # a response that is no JSON, or of other fields
                why = f"{type(error).__name__}: {str(error)[:300]}"
            now = time.monotonic()
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now + wait > min(end, self._silent_since + self._settings.outage_seconds):
                return UnansweredError(f"the judge at {self._settings.url} does not answer: {why}")
            await anyio.sleep(wait)
            pause = min(2 * pause, _LONGEST_WAIT)

    async def _once(self, client: Any, question: Question, seed: int) -> Reply:
        settings = self._settings
        options: dict[str, Any] = {"temperature": settings.temperature, "max_tokens": settings.max_tokens, "seed": seed}
        if question.words:
            options |= {"max_tokens": 1, "logprobs": True, "top_logprobs": LIKELIEST, "temperature": 0.0}
        elif settings.structured and question.schema is not None:
            form = {"name": "verdict", "strict": True, "schema": dict(question.schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        if "max_tokens" in self._refused:
            options["max_completion_tokens"] = options.pop("max_tokens")
        for name in self._refused & {"temperature", "seed"}:
            del options[name]
        answer = await client.chat.completions.create(
            model=settings.model, messages=_messages(question), stream=False, **options
        )
        return _read(answer, question)

    def _adapt(self, message: str) -> bool:
        """Leaves an option out that the address says it does not take; returns whether there is a new one."""
        for name in ("max_tokens", "temperature", "seed"):
            if name in message and name not in self._refused:
                self._refused.add(name)
                return True
        return False


def _messages(question: Question) -> list[dict[str, Any]]:
    shown = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in question.images]
    content: Any = [*shown, {"type": "text", "text": question.text}] if shown else question.text
    system = [{"role": "system", "content": question.system}] if question.system else []
    return [*system, {"role": "user", "content": content}]


def data_url(image: "Image") -> str:
    """Returns an image as a PNG inside of a URL, without loss."""
    content = io.BytesIO()
    image.save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _read(answer: Any, question: Question) -> Reply:
    """Returns the reply of a response. Raises UnansweredError for one that is cut, filtered, empty or without shape."""
    from openai.types.chat import ChatCompletion

    if not isinstance(answer, ChatCompletion) or not answer.choices or answer.choices[0].message is None:
        raise UnansweredError("the response holds no reply")
    choice, usage = answer.choices[0], answer.usage
    prompt_tokens, reply_tokens = (0, 0) if usage is None else (usage.prompt_tokens or 0, usage.completion_tokens or 0)
    if question.words:
        return Reply("", _log_probs(choice, question.words), prompt_tokens, reply_tokens)
    if choice.finish_reason == "length":
        raise UnansweredError("the reply was cut at max_tokens")
    if not isinstance(choice.message.content, str) or not choice.message.content.strip():
        refusal = choice.message.refusal
        raise UnansweredError(f"the reply is empty{f': {refusal}' if refusal else ''} ({choice.finish_reason})")
    return Reply(choice.message.content, None, prompt_tokens, reply_tokens)


def _log_probs(choice: Any, words: Sequence[str]) -> tuple[float, ...]:
    """Returns the log of the summed probability of the first tokens that are each word, whatever their capitals."""
    content = None if choice.logprobs is None else choice.logprobs.content
    if not content or not content[0].top_logprobs:
        raise UnansweredError("the address tells no probabilities of tokens (top_logprobs)")
    sums = dict.fromkeys((word.casefold() for word in words), 0.0)
    for one in content[0].top_logprobs:
        token = one.token.strip().casefold()
        if token in sums:
            sums[token] += math.exp(min(one.logprob, 0.0))
    return tuple(math.log(sums[word.casefold()]) if sums[word.casefold()] > 0 else -math.inf for word in words)


def _header_wait(header: str | None) -> float:
    """Returns the seconds of a header Retry-After, at most `_LONGEST_WAIT`; 0 where there is none or it is a date."""
    try:
        return min(max(float(header or 0), 0.0), _LONGEST_WAIT)
    except ValueError:
        return 0.0


class _Bounded(httpx2.AsyncBaseTransport):
    """A transport that breaks a response off where it has more than MAX_BYTES."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity") != "identity":  # a few bytes may unpack to any number
            await response.aclose()
            raise UnansweredError("the response is compressed, which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._inner:
            size += len(part)
            if size > MAX_BYTES:
                raise UnansweredError(f"the response has more than {MAX_BYTES:,} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def check_key(settings: JudgeModel) -> None:
    """Raises ConfigError where the key of an address has characters that no header can hold."""
    key = os.environ.get(settings.key_variable, "")
    if not key.isascii() or any(ord(letter) < 32 for letter in key):
        raise ConfigError(f"the environment variable {settings.key_variable} holds no key: it has characters of no key")
