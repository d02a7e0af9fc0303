"""The comparison of a model type that no test runs with its own forward pass, when it is loaded; refused if different.

Answers to two prompts are read in plain rows, and as a rollout does, token by token on a cache; and by the model's own
forward pass, a row [prompt, answer] at a time, with all tensors of its processor, without padding, cache or positions
of ours. `sharing` then compares how an update shares prompts with plain rows. The comparison does not cover prompts
without images, with several, or of hundreds of tokens, and differences below the rounding of the run's own precision.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt

from ..encoding.families import is_tested, types_with_tests
from ..encoding.inputs import EncodedPrompt
from ..encoding.network import network_of
from ..encoding.prompt_encoder import TEXT, PromptEncoder
from ..tokens.backbone import Answers, answers_to_each
from ..tokens.completions import StoppingCriteria
from ..tokens.generation import AnswerGenerator
from ..tokens.sampling import SamplingDistribution, sampling_log_probs
from .policy import TokenPolicy
from .probing import RAISED
from .sharing import choose_sharing, rounded_embeddings

# In nats, of the mean over tokens. Rounding was 2e-6 at most in float32, on 18 families, and in lower precision 0.9 of
# `_OwnForward.rounding` at most, with 2 to 32 layers. Wrong masks, tokens and scales were 0.04 to 0.7.
LEAST, ROUNDINGS = 1e-3, 3.0
TELLING = 0.04  # a tolerance above this may hide such faults
MAX_TOKENS = 24  # of an answer: a network call each
MAX_SHARED = 256  # of an answer that is read at once
WORDS = "On the left is a red box, and above it stands the blue one."
log = logging.getLogger(__name__)


@contextmanager
def refusing_errors(model: str, config: Any) -> Iterator[None]:
    """Turns errors of the block into a ConfigError, for a model type that no test runs."""
    try:
        yield
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except RAISED as error:
        if is_tested(config):
            raise
        raise ConfigError(
            f"modality.model: {model!r} {_untested(config)}, and does not work here: {type(error).__name__}: {error}; "
            f"{_known()}"
        ) from error


def refuse_other_log_probs(policy: TokenPolicy, model: str, encoder: PromptEncoder, prompts: Sequence[Prompt]) -> None:
    """Raises ConfigError where the log-probs of answers to the prompts differ from the model's own forward pass.

    Types of models that tests run are not compared.
    """
    config, device = encoder.model.config, policy.backbone.device
    if is_tested(config):
        return
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        _compare(policy, model, encoder, prompts)


def _compare(policy: TokenPolicy, model: str, encoder: PromptEncoder, prompts: Sequence[Prompt]) -> None:
    config, device = encoder.model.config, policy.backbone.device
    alone = replace(encoder, max_tokens=None, _kept={})  # the run's own prompts may be shorter than these
    own = _OwnForward(policy, encoder.model, [alone.processed(prompt) for prompt in prompts])
    encoded = alone(prompts)
    named = _answers(policy, encoder.processor.tokenizer, encoded)
    read = {what: answers_to_each(rows, len(prompts), device) for what, rows in named.items()}
    expected = {what: own.log_probs(answers) for what, answers in read.items()}
    allowed = {what: max(LEAST, ROUNDINGS * own.rounding(answers, expected[what])) for what, answers in read.items()}
    if (most := max(allowed.values())) > TELLING:
        log.warning(
            "modality.model: rounding in %s moves the log-probs of %r so far that %.2g nats a token off its own "
            "forward pass would not be seen; try it once with precision: float32",
            *(str(policy.precision).removeprefix("torch."), model, most),
        )

    def fault(path: str) -> str | None:
        """Returns how far a path of the run is off; None where it agrees."""
        for what, answers in read.items():
            try:
                off = (_PATHS[path](policy, encoded, answers) - expected[what]).abs()
            except RAISED as error:
                if policy.backbone.one_at_a_time or isinstance(error, torch.OutOfMemoryError):
                    raise
                return f"{path} raise {type(error).__name__}: {error}"
            if not off.mean() <= allowed[what]:  # NaN too
                return (
                    f"the log-probs of {path} differ from its own forward pass by {off.mean():.2g} nats a token, up to "
                    f"{off.max():.2g}, in answers of {what} (up to {allowed[what]:.2g} may be rounding)"
                )
        return None

    policy.share("none")
    for path in _PATHS if policy.engine is None else ("updates",):
        why = fault(path)
        if why is not None and not policy.backbone.one_at_a_time and _works_alone(policy, fault, path):
            log.warning(
                "modality.model: %r reads one prompt at a time, for in a batch of two %s; rollouts and updates take "
                "more network calls", model, why,
            )  # fmt: skip
        elif why is not None:
            raise ConfigError(
                f"modality.model: {model!r} {_untested(config)}, and {why}; training would be wrong. {_known()}"
            )
    every = _answers(policy, encoder.processor.tokenizer, encoded, MAX_SHARED)
    choose_sharing(
        policy, model, encoded, {what: answers_to_each(rows, len(prompts), device) for what, rows in every.items()}
    )


def _works_alone(policy: TokenPolicy, fault: Callable[[str], str | None], path: str) -> bool:
    """Returns whether a path agrees with prompts read one at a time, which the policy then does."""
    together = policy.backbone
    policy.use(replace(together, one_at_a_time=True))
    if fault(path) is None:
        return True
    policy.use(together)
    return False


def _untested(config: Any) -> str:
    """Returns words for a model type that no test runs."""
    language = config.get_text_config().model_type
    return f"is a model of type {config.model_type!r} (language model {language!r}), which no test of mmrl runs"


def _known() -> str:
    """Returns the sentence of an error about the model types that tests run."""
    known = ", ".join(types_with_tests())
    return f"Types that tests run are {known}; another one is used where it agrees with its own forward pass"


def _answers(
    policy: TokenPolicy, tokenizer: Any, prompts: Sequence[EncodedPrompt], most_tokens: int = MAX_TOKENS
) -> dict[str, list[Tensor]]:
    """Returns answers of different lengths, each with an end token: of words, and of special tokens not banned.

    Some vocabularies have thousands of special tokens; those that stand in the prompts come first.
    """
    words = policy.tokenize(WORDS)
    in_prompts = {token for prompt in prompts for token in prompt.tokens.tolist()}
    allowed = set(tokenizer.added_tokens_decoder) - {*policy.banned, *policy.end_tokens}
    special = sorted(allowed, key=lambda token: (token not in in_prompts, token))
    found = {}
    for what, tokens in {"words": words, "special tokens": special}.items():
        most = tokens[: most_tokens - 1]
        if most:
            found[what] = [torch.tensor([*some, policy.end_tokens[0]]) for some in (most, most[: len(most) // 2])]
    return found


def _in_rows(policy: TokenPolicy, prompts: Sequence[EncodedPrompt], answers: Answers) -> Tensor:
    """Returns log-probs [N] of the answers' tokens as an update in plain rows computes them."""
    with torch.enable_grad():  # checkpointing is for passes with a graph
        log_prob, _ = policy.log_probs(prompts, answers, SamplingDistribution(1.0, banned=policy.banned))
    return log_prob.detach()


@torch.no_grad()
def _teacher_forced(policy: TokenPolicy, prompts: Sequence[EncodedPrompt], answers: Answers) -> Tensor:
    """Returns log-probs [N] that a rollout records of the answers' tokens."""
    stopping = StoppingCriteria(policy.end_tokens, (), policy.decode, answers.tokens.shape[1])
    distribution = SamplingDistribution(1.0, banned=policy.banned)
    generator = _TeacherForced(policy.backbone, policy.head, distribution, stopping, policy.answers_at_once)
    with policy.running():
        completions = generator.answers(prompts, answers.prompt.cpu(), answers.tokens.cpu())
    assert completions is not None and torch.equal(completions.tokens, answers.tokens.cpu()), (
        "each answer ends with its end token"
    )
    return completions.log_prob[answers.is_token.cpu()].to(answers.tokens.device)


_PATHS = {"updates": _in_rows, "rollouts": _teacher_forced}


@dataclass(frozen=True)
class _TeacherForced(AnswerGenerator):
    """A generator with teacher forcing: the number by which a token would be sampled is the token."""

    def choose(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        return uniform.to(torch.int64)


@dataclass(frozen=True)
class _OwnForward:
    """The model as transformers runs it."""

    policy: TokenPolicy  # for its precision and banned tokens
    model: Any
    inputs: Sequence[Mapping[str, Tensor]]  # of each prompt, all that the processor makes

    def log_probs(self, answers: Answers) -> Tensor:
        """Returns log-probs [N] of the answers' tokens."""
        rows = [
            self._row(self.inputs[prompt], tokens[:length])
            for prompt, tokens, length in zip(
                answers.prompt.tolist(), answers.tokens, answers.length.tolist(), strict=True
            )
        ]
        return torch.cat(rows)

    def rounding(self, answers: Answers, log_probs: Tensor) -> float:
        """Returns how far log-probs [N] move, in the mean, if every number of the embeddings is off by one rounding."""
        with rounded_embeddings(self.model, self.policy.precision):
            return float((self.log_probs(answers) - log_probs).abs().mean())

    def _row(self, given: Mapping[str, Tensor], answer: Tensor) -> Tensor:
        """Returns log-probs [T] of the tokens of one answer [T]."""
        kind = self._kind(given, answer)
        log_probs = sampling_log_probs(
            self._logits(given, answer, kind), SamplingDistribution(1.0, banned=self.policy.banned)
        )
        return log_probs.gather(1, answer[:, None])[:, 0]

    def _kind(self, given: Mapping[str, Tensor], answer: Tensor) -> int:
        """Returns the type of an answer's tokens: the first with which no token sees those behind it.

        The type is 0, of text, unless 0 is a prompt that sees itself as a whole and 1 the answer (PaliGemma).
        """
        if not {"token_type_ids", "mm_token_type_ids"} & set(given) or len(answer) < 3:
            return 0
        other = torch.cat([answer[:-2], answer[:1], answer[-1:]])  # of the last that is read

        def is_moved(kind: int) -> bool:
            one, two = [self._logits(given, tokens, kind)[:-1] for tokens in (answer, other)]
            return not torch.allclose(one, two, rtol=0, atol=1e-3 * float(one.abs().max()))

        return int(is_moved(0) and not is_moved(1))

    @torch.no_grad()
    def _logits(self, given: Mapping[str, Tensor], answer: Tensor, kind: int) -> Tensor:
        """Returns logits [T, V] in float32 from which the tokens of one answer [T] are predicted."""
        more = {"input_ids": answer, "attention_mask": torch.ones_like(answer)}
        types = torch.full_like(answer, kind)
        row = {
            name: torch.cat([value, more.get(name, types)[None].to(value)], 1) if name in TEXT else value
            for name, value in ((name, value.to(answer.device)) for name, value in given.items())
        }
        network = network_of(self.model)
        if hasattr(network, "rope_deltas"):
            network.rope_deltas = None  # of the prompt before
        with self.policy.running():
            logits = self.model(**row, use_cache=False).logits[0]
        before = given["input_ids"].shape[1] - 1
        return logits[before : before + len(answer)].float()  # type: ignore[no-any-return]
