"""What policies that answer in tokens share: drawing by plan, evaluation of decisions, the trace between the two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout
from mmrl.core.decisions import after
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView, View
from mmrl.parsing.answers import shown
from mmrl.plans.flow import PROMPT_READS, AnswerPlan
from mmrl.plans.offline import OFFLINE, TOKENS

from ..encoding.inputs import EncodedPrompt, called, pad_rows
from ..tokens.attention import takes_trees
from ..tokens.backbone import Answers
from ..tokens.completions import Completions
from ..tokens.log_probs import token_log_probs
from ..tokens.prefix_cache import hidden_by_cache, hidden_by_rows
from ..tokens.prefix_packing import hidden_by_packing
from ..tokens.sampling import SamplingDistribution, Support
from ..tokens.trace import TokenSpans, TokenTrace
from .model import SharingMode
from .rollout import TokenGenerator, decides

_HIDDEN_BY_MODE = {"cache": hidden_by_cache, "packed": hidden_by_packing, "none": hidden_by_rows}


@dataclass(kw_only=True)
class TokenPolicy(TokenGenerator):
    """A language model that reads a prompt and answers in tokens; a family supplies inputs, network and text.

    One network call is one answer. Vision tower and prompt run once for all answers of a micro-batch to one prompt.

    `vocabulary_chunk` is how many logits are held at once in an update; `answer_batch` how many answers are drawn side
    by side. `engine`: another engine that draws the answers, such as `{name: vllm, url: ...}`; the policy still
    evaluates them, and the run's `correction` says what is done about the difference.
    """

    forward_kinds: ClassVar[frozenset[str]] = frozenset({"decisions"})
    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "tokens"
    makes: ClassVar[frozenset[str]] = frozenset({"texts", "is_finished", "num_tokens", "pieces", "canvases"})

    def dummy_forward(self) -> Tensor:
        """Takes part in the network calls of one `forward` of other processes; 0, with a graph to all weights."""
        assert self.lockstep is not None, "only sharded processes idle"
        log_prob, _ = self.log_probs(*self.lockstep.dummy(self.backbone.device), SamplingDistribution(1.0))
        return 0 * log_prob.sum()

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Supplied texts, one per prompt, with an end token behind each, as decisions at temperature 1.

        Their log-probs are not recorded; `recompute` fills them in. Raises ValueError where texts are missing, and
        ConfigError where one spells a media token or an end token.
        """
        if outputs.texts is None or len(outputs.texts) != len(prompts):
            got = "none" if outputs.texts is None else str(len(outputs.texts))
            raise ValueError(f"{len(prompts)} prompts need as many texts, got {got}")
        for prompt, text in zip(prompts, outputs.texts, strict=True):
            if (kind := self._spelt(text)) is not None:
                raise ConfigError(_refused(prompt, text, kind))
        rows = [torch.tensor(self.tokens_of(text)) for text in outputs.texts]
        length = torch.tensor([len(row) for row in rows])
        table, is_finished = pad_rows(rows, 0, "right"), torch.ones(len(rows), dtype=torch.bool)
        completions = Completions(table, length, torch.zeros(table.shape), is_finished, None)
        trace = TokenTrace(
            tuple(self.encode(prompts)), completions, SamplingDistribution(1.0, banned=self.banned), is_recorded=False
        )
        rollout = self.assemble(prompts, keys, torch.arange(len(rows)), trace, is_finished)
        return replace(rollout, num_calls=0, counts={f"calls/{PROMPT_READS}": 0})

    def offline_tokens(
        self,
        prompts: Sequence[Prompt],
        tokens: Sequence[Sequence[int]],
        log_probs: Sequence[Sequence[float]],
        keys: Sequence[GroupKey],
    ) -> Rollout:
        """Supplied answers as the tokens that they were drawn as, one per prompt, as decisions at temperature 1.

        `log_probs` of whoever drew them are those recorded. An answer without an end token was cut.
        """
        samples = [
            {
                "tokens": torch.tensor(ids),
                "log_prob": torch.tensor(values, dtype=torch.float32),
                "is_finished": torch.tensor([ids[-1] in self.end_tokens]),
            }
            for ids, values in zip(tokens, log_probs, strict=True)
        ]
        return self.replayed(prompts, samples, keys, AnswerPlan(1, max(map(len, tokens))))

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer that ended by itself."""
        return (*self.tokenize(text), self.end_tokens[0])

    def refusal_of_offline(self, prompt: Prompt) -> str | None:
        """Why an answer that a prompt brings cannot be learned from; None where all can."""
        given = prompt.target.get(OFFLINE, ())
        if TOKENS in prompt.target:
            refusals = map(self._fault_of_tokens, prompt.target[TOKENS], given)
            return next((f"{called(prompt)}: {why}" for why in refusals if why is not None), None)
        texts = [text for text in given if isinstance(text, str) and self._may_spell(text)]
        return next((_refused(prompt, text, kind) for text in texts if (kind := self._spelt(text)) is not None), None)

    def _fault_of_tokens(self, ids: Sequence[int], text: str) -> str | None:
        """Why these are not the tokens of an answer of this text; None where they are."""
        size = len(self.head.weight)
        if outside := [token for token in ids if not 0 <= token < size]:
            return f"token_ids has {outside[0]}, and the model has {size} tokens"
        inner = list(ids[:-1] if ids[-1] in self.end_tokens else ids)
        if any(token in inner for token in (*self.banned, *self.end_tokens)):
            return "token_ids has a media token, or an end token before its last, which no answer may"
        if (said := self.decode(inner)) != text:
            return f"its token_ids spell {shown(said)} by this model's tokenizer, and the answer is {shown(text)}"
        return None

    @cached_property
    def _unspeakable(self) -> tuple[str, ...]:
        words = (self.decode([token]) for token in (*self.banned, *self.end_tokens))
        return tuple(word for word in words if word)  # a row of the vocabulary's padding has none

    def _may_spell(self, text: str) -> bool:
        """Whether its letters hold such a token: files of many answers are not tokenized for it."""
        return any(word in text for word in self._unspeakable)

    def _spelt(self, text: str) -> str | None:
        """What a text spells that no answer may; None: nothing."""
        tokens = set(self.tokenize(text))
        kinds = {"a media token": self.banned, "an end token": self.end_tokens}
        return next((kind for kind, refused in kinds.items() if tokens & set(refused)), None)

    def taken(self, rollout: Rollout, row: int) -> dict[str, Tensor]:
        """What it takes to evaluate an answer again: its tokens [T], their log-probs [T] as recorded, and whether it
        ended by itself [1]."""
        completions: Completions = rollout.trace.completions
        stop = int(completions.length[row])
        is_finished = completions.is_finished[row : row + 1]
        return {
            "tokens": completions.tokens[row, :stop],
            "log_prob": completions.log_prob[row, :stop],
            "is_finished": is_finished,
        }

    def replayed(
        self, prompts: Sequence[Prompt], samples: Sequence[Mapping[str, Tensor]], keys: Sequence[GroupKey],
        plan: AnswerPlan,
    ) -> Rollout:  # fmt: skip
        """A rollout of taken answers, one per prompt, that were drawn by plans like this one; no network call."""
        tokens, log_probs = ([one[name] for one in samples] for name in ("tokens", "log_prob"))
        is_finished = torch.cat([one["is_finished"] for one in samples])
        length = torch.tensor([len(row) for row in tokens])
        completions = Completions(
            pad_rows(tokens, 0, "right"), length, pad_rows(log_probs, 0, "right"), is_finished, None
        )
        trace = TokenTrace(tuple(self.encode(prompts)), completions, self._distribution(plan), is_recorded=True)
        rollout = self.assemble(prompts, keys, torch.arange(len(tokens)), trace, decides(trace, plan))
        return replace(rollout, num_calls=0, counts={f"calls/{PROMPT_READS}": 0})

    def forward(self, rollout: Rollout, view: View) -> TokenDecisions:
        """Log-probs and entropies of the view's answers under the weights now in place."""
        if not isinstance(view, DecisionView):
            raise ConfigError(f"a token policy evaluates decisions, not a {type(view).__name__}")
        trace: TokenTrace = rollout.trace
        block = rollout.blocks[view.block]
        asked = TokenSpans.of(block, view)
        edges = asked.edges(block)
        place = torch.full((after(block.edge) + 1,), len(edges))  # the last is read by edge -1
        place[edges] = torch.arange(len(edges))
        entry = place[block.edge].to(self.backbone.device)  # [B, K]
        log_prob, entropy = (
            self._token_log_probs(trace, rollout.prompt, block, asked) if len(edges) else (entry.new_zeros(0),) * 2
        )

        def spread(values: Tensor) -> Tensor:
            return torch.cat([values, values.new_zeros(1)])[entry]

        return TokenDecisions(spread(log_prob), spread(entropy))

    def recorded(self, rollout: Rollout, view: View) -> TokenDecisions:
        """The log-probs as the weights that drew the answers gave them."""
        assert isinstance(view, DecisionView), "only decisions are recorded"
        trace: TokenTrace = rollout.trace
        if not trace.is_recorded:
            raise ValueError("the log-probs of given answers are not recorded; recompute the rollout first")
        block = rollout.blocks[view.block]
        is_inside = torch.isin(block.call, view.calls)  # [B, K]
        values = torch.where(is_inside, trace.completions.log_prob[:, : block.call.shape[1]], torch.zeros(()))
        return TokenDecisions(values.to(self.backbone.device))

    @torch.no_grad()
    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        """The rollout with the log-probs of its decisions computed again by the weights now in place."""
        trace: TokenTrace = rollout.trace
        calls = rollout.blocks[0].call
        view = DecisionView(torch.arange(int(calls.max()) + 1 if calls.numel() else 0))
        log_prob = torch.zeros_like(trace.completions.log_prob)
        parts, lockstep = view.split(size), self.lockstep
        for number in range(len(parts) if lockstep is None else lockstep.maximum(len(parts))):
            if number < len(parts):
                log_prob[:, : calls.shape[1]] += self.forward(rollout, parts[number]).values.cpu()
            else:
                self.dummy_forward()
        return replace(
            rollout, trace=replace(trace, completions=replace(trace.completions, log_prob=log_prob), is_recorded=True)
        )

    def _token_log_probs(
        self, trace: TokenTrace, prompt_of: Tensor, block: DecisionBlock, asked: TokenSpans
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the tokens of the stretches `asked`, one after the other."""
        if self.engine is not None and trace.distribution.is_truncated and trace.completions.support is None:
            raise ConfigError(
                "sampler: the engine does not say which tokens top_p, top_k and min_p kept, which log-probs are taken "
                "over; start vLLM with --return-sampling-mask (it needs top_k), or leave the three out"
            )
        rows, device = asked.rows, self.backbone.device
        prompt = prompt_of[rows].tolist()
        distinct = {id(trace.prompts[number]): trace.prompts[number] for number in prompt}
        place = {name: number for number, name in enumerate(distinct)}
        width, is_tree = int(asked.stop.max()), bool((asked.start > 0).any())
        answers = Answers(
            torch.tensor([place[id(trace.prompts[number])] for number in prompt], device=device),
            trace.completions.tokens[rows, :width].to(device),
            asked.stop.to(device),
            asked.start.to(device) if is_tree else None,
            block.edge[rows, :width].to(device) if is_tree else None,
        )
        self.num_calls += len(rows)
        support = trace.completions.support_of(rows, asked.start, asked.stop)
        return self.log_probs(list(distinct.values()), answers, trace.distribution, support)

    def log_probs(
        self,
        prompts: Sequence[EncodedPrompt],
        answers: Answers,
        distribution: SamplingDistribution,
        support: Support | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the N tokens of the answers."""
        lockstep, tokens = self.lockstep, answers.tokens[answers.is_token]
        read = (prompts, answers) if lockstep is None else lockstep.filled(prompts, answers)
        with self.running():
            hidden = _HIDDEN_BY_MODE[self._mode_of(answers)](self.backbone, *read)[: len(tokens)]
            return token_log_probs(hidden, self.head, tokens, distribution, self.vocabulary_chunk, support)

    def _mode_of(self, answers: Answers) -> SharingMode:
        """A cache would read what the stretches of a tree share once for each, a packed row reads it once."""
        is_packed = answers.name is not None and self.sharing_mode == "cache" and takes_trees(self.backbone.model)
        return "packed" if is_packed else self.sharing_mode


def _refused(prompt: Prompt, text: str, kind: str) -> str:
    shown = repr(text if len(text) <= 60 else f"{text[:20]} ... {text[-35:]}")
    return (
        f"{called(prompt)}: the answer {shown} spells {kind}, which no text may; answers get an end token by themselves"
    )
