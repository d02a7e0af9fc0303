"""vLLM's "tokens in, tokens out" protocol (`/inference/v1/generate`): requests, and answers checked field by field."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.core.contracts import ConfigError, RunError

from .features import MediaItem, features_of

LARGEST_BIAS = 100.0  # that OpenAI's protocol allows
BANNED_BIAS = -LARGEST_BIAS  # a probability of exp(-100) is never sampled
COLDEST = 0.01  # vLLM uses this temperature in place of lower ones above 0


@dataclass(frozen=True)
class Question:
    """One prompt as it is sent to the server, and as the server must read it."""

    sent: tuple[int, ...]  # one token for each image that has an address
    read: tuple[int, ...]  # the tokens that the server must make of it: those of training
    images: tuple[str, ...]  # data addresses of its images, in order
    items: tuple[MediaItem, ...] = ()  # its images and videos as tensors, in the place of addresses; all in order


@dataclass(frozen=True)
class SamplingParams:
    """The settings by which the tokens of an answer are sampled; a seed comes with each answer."""

    temperature: float
    top_p: float
    top_k: int | None
    min_p: float
    max_tokens: int
    stop: tuple[str, ...]
    end_tokens: tuple[int, ...]
    banned: tuple[int, ...]

    def __post_init__(self) -> None:
        if 0 < self.temperature < COLDEST:
            raise ConfigError(f"sampler.temperature must be 0, or at least {COLDEST} for vLLM, got {self.temperature}")


@dataclass(frozen=True)
class Answer:
    """One answer that the server sampled: T tokens, the end token included."""

    tokens: list[int]
    log_probs: list[float]
    is_finished: bool
    support: list[list[int]] | None  # the possible tokens at each place; None where the server does not return them


def body_of(
    model: str, question: Question, sampling: SamplingParams, seed: int, num_answers: int = 1
) -> dict[str, Any]:
    """Returns the request for answers to one question; vLLM samples answer i by the seed `seed + i`.

    The fields are those of vLLM 0.33 (`GenerateRequest`, `SamplingParams`).
    """
    parameters: dict[str, Any] = {
        "n": num_answers,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p,
        "seed": seed,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.end_tokens),
        "logprobs": 0,  # of the sampled token alone
        "logit_bias": {str(token): BANNED_BIAS for token in sampling.banned},
        "skip_special_tokens": False,  # a stop text may spell one
        "include_stop_str_in_output": True,
    }
    body = {
        "model": model,
        "token_ids": list(question.sent),
        "sampling_params": parameters,
        "return_token_ids": True,
        "stream": False,
    }
    if question.images:
        body["content_parts"] = [{"type": "image_url", "url": image} for image in question.images]
    if question.items:
        body["features"] = features_of(question.items)
    return body


def answers_of(
    reply: Any, question: Question, sampling: SamplingParams, num_tokens: int, num_answers: int = 1
) -> list[Answer]:
    """Returns the answers in the server's JSON, in the order of their seeds, of a model with `num_tokens` tokens.

    Raises ConfigError where the server read another prompt than that of training, and RunError for missing or wrong
    parts of an answer.
    """
    choices = _field(reply, "choices", list)
    if len(choices) != num_answers:
        raise RunError(f"engine: the vLLM server gave {len(choices)} answers where {num_answers} were requested")
    _check_prompt(_numbers(reply, "prompt_token_ids"), question)
    places = [_field(choice, "index", int) for choice in choices]
    if sorted(places) != list(range(num_answers)):
        raise RunError(f"engine: the vLLM server numbers its {num_answers} answers {_shown(places)}")
    ordered = sorted(zip(places, choices, strict=True), key=lambda pair: pair[0])
    return [_answer(choice, sampling, num_tokens) for _, choice in ordered]


def _answer(choice: Any, sampling: SamplingParams, num_tokens: int) -> Answer:
    tokens, reason = _numbers(choice, "token_ids"), _field(choice, "finish_reason", str)
    if reason not in ("stop", "length"):
        raise RunError(f"engine: the vLLM server ended an answer with {_shown(reason)}; see its log")
    if not 1 <= len(tokens) <= sampling.max_tokens:
        raise RunError(f"engine: an answer of {len(tokens)} tokens, where 1 to {sampling.max_tokens} were requested")
    if max(tokens) >= num_tokens:
        raise RunError(
            f"engine: the vLLM server sampled token {_shown(max(tokens))}, and the model has {num_tokens}; "
            "the server must serve the model of this run"
        )
    if banned := set(tokens) & set(sampling.banned):
        raise RunError(f"engine: the vLLM server sampled the banned token {min(banned)}; it ignores logit_bias")
    if early := set(tokens[:-1]) & set(sampling.end_tokens):
        raise RunError(f"engine: the vLLM server went on behind the end token {min(early)}; it ignores stop_token_ids")
    mask = choice.get("sampling_mask")
    support = None if mask is None else _mask(mask, tokens, num_tokens)
    return Answer(tokens, _log_probs(choice, tokens), reason == "stop", support)


def versions_of(reply: Any) -> set[str]:
    """Returns the names of the weights by which a server sampled the tokens of its answer, where it says them.

    Raises RunError for a wrong type.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    spans = [span for choice in choices or [] for span in (choice.get("weight_versions") or [])]
    return {_field(span, "version", str) for span in spans}


def _log_probs(choice: Any, tokens: Sequence[int]) -> list[float]:
    """Returns the log-probs of the tokens. Raises RunError for other tokens, and for impossible values."""
    content = _field(_field(choice, "logprobs", dict), "content", list)
    if [_field(entry, "token_id", int) for entry in content] != list(tokens):
        raise RunError("engine: the vLLM server's log-probs are of other tokens than its answer")
    values = [_field(entry, "logprob", (int, float)) for entry in content]
    # -9999 stands for an unknown log-prob; integers may be too large for a float
    wrong = [value for value in values if not -9999 < value <= 1e-3]
    if wrong:
        raise RunError(f"engine: the vLLM server gave {_shown(wrong[0])} for the log-prob of a token that it sampled")
    return [float(value) for value in values]


def _mask(mask: Any, tokens: Sequence[int], num_tokens: int) -> list[list[int]]:
    """Returns the possible tokens at the place of each token, ascending. Raises RunError for a wrong mask."""
    if not isinstance(mask, list) or len(mask) != len(tokens) or not all(isinstance(ids, list) for ids in mask):
        raise RunError(f"engine: the vLLM server's sampling_mask must hold a list for each of {len(tokens)} tokens")
    for token, ids in zip(tokens, mask, strict=True):
        _check_tokens(ids, "sampling_mask")
        if token not in ids:
            raise RunError("engine: the vLLM server's sampling_mask does not hold the tokens of its answer")
        if max(ids) >= num_tokens or len(set(ids)) < len(ids):
            raise RunError(
                "engine: the vLLM server's sampling_mask must hold each token once, and only those of the model "
                f"(it has {num_tokens}), got {_shown(ids)}"
            )
    return [sorted(ids) for ids in mask]


def _check_prompt(read: Sequence[int], question: Question) -> None:
    """Raises ConfigError where the server read another prompt than that of training."""
    if tuple(read) == question.read:
        return
    first = next((n for n, (a, b) in enumerate(zip(read, question.read, strict=False)) if a != b), None)
    where = "one begins as the other" if first is None else f"they differ first at token {first}"
    hint = (
        "its images become another number of tokens there: start the server with the pixel limits of this run "
        "(--mm-processor-kwargs), and see docs/engines.md for the families that can be sampled so"
        if question.images
        else "the server must serve the model of this run"
    )
    raise ConfigError(
        f"engine: the vLLM server read a prompt of {len(read)} tokens where this run has {len(question.read)}, and "
        f"{where}; {hint}"
    )


def _field(holder: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Returns a field of a server's JSON. Raises RunError where it is missing or of another type."""
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise RunError(
            f"engine: the vLLM server's answer has no {name} ({kinds}), got {type(value).__name__}; mmrl speaks the "
            "protocol of vLLM 0.32 and 0.33"
        )
    return value


def _numbers(holder: Any, name: str) -> list[int]:
    values: list[int] = _field(holder, name, list)
    _check_tokens(values, name)
    return values


def _check_tokens(values: Sequence[Any], name: str) -> None:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise RunError(f"engine: {name} of the vLLM server's answer must hold token numbers, got {_shown(value)}")


def _shown(value: Any) -> str:
    return f"{value!r:.80}"
