"""The base class of policies that answer in tokens: rollouts, forward outputs of decisions, offline answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout, after, count_calls
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.core.keys import GroupKey
from mmrl.core.likelihoods import Likelihoods, tokens_between
from mmrl.core.views import DecisionView, View
from mmrl.parsing.answers import shown
from mmrl.plans.answers import PROMPT_READS, AnswerPlan
from mmrl.plans.offline import OFFLINE, TOKENS

from ..encoding.inputs import EncodedPrompt, called, pad_rows
from ..tokens.attention import takes_trees
from ..tokens.backbone import Answers, Backbone
from ..tokens.completions import Completions
from ..tokens.log_probs import self_certainties, token_log_probs
from ..tokens.one_at_a_time import hidden_one_at_a_time
from ..tokens.prefix_cache import hidden_by_cache, hidden_by_rows
from ..tokens.prefix_packing import hidden_by_packing
from ..tokens.sampling import SamplingDistribution, Support
from ..tokens.spread import group_spread
from ..tokens.trace import TokenSpans, TokenTrace, answer_block
from .model import SharingMode
from .rollout import TokenGenerator, decides

_HIDDEN_BY_MODE = {"cache": hidden_by_cache, "packed": hidden_by_packing, "none": hidden_by_rows}


@dataclass(kw_only=True)
class TokenPolicy(TokenGenerator):
    """A language model that reads a prompt and answers in tokens; a family defines inputs, network and text.

    One network call is one answer. Vision tower and prompt run once for all answers of a micro-batch to one prompt.
    """

    forward_kinds: ClassVar[frozenset[str]] = frozenset({"decisions"})
    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "tokens"
    makes: ClassVar[frozenset[str]] = frozenset({"texts", "is_finished", "num_tokens", "pieces", "canvases"})

    def dummy_forward(self) -> Tensor:
        """Takes part in one `forward` of other processes; returns 0, with a graph to all weights."""
        assert self.lockstep is not None, "only sharded processes make dummy calls"
        log_prob, _ = self.log_probs(*self.lockstep.dummy(torch.device("cpu")), SamplingDistribution(1.0))
        return 0 * log_prob.sum()

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        """Returns a rollout of supplied texts, one per prompt, with an end token behind each, as decisions.

        The temperature is 1. Log-probs are not recorded; `recompute` fills them in. Raises ValueError where texts are
        missing, and ConfigError for a text that spells a media token or an end token.
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
        """Returns a rollout of supplied tokens of answers, one answer per prompt, as decisions at temperature 1.

        `log_probs` of the policies that sampled them become the recorded ones. An answer without an end token was cut.
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
        """Returns the tokens of a finished answer, its end token included."""
        return (*self.tokenize(text), self.end_tokens[0])

    def refusal_of_offline(self, prompt: Prompt) -> str | None:
        """Returns why an answer that the data brings with a prompt cannot be learned from; None where all can."""
        given = prompt.target.get(OFFLINE, ())
        if TOKENS in prompt.target:
            refusals = map(self._fault_of_tokens, prompt.target[TOKENS], given)
            return next((f"{called(prompt)}: {why}" for why in refusals if why is not None), None)
        texts = [text for text in given if isinstance(text, str) and self._may_spell(text)]
        return next((_refused(prompt, text, kind) for text in texts if (kind := self._spelt(text)) is not None), None)

    def _fault_of_tokens(self, ids: Sequence[int], text: str) -> str | None:
        """Returns why these are not the tokens of an answer of this text; None where they are."""
        size = len(self.head.weight)
        if outside := [token for token in ids if not 0 <= token < size]:
            return f"token_ids has {outside[0]}, and the model has {size} tokens"
        inner = list(ids[:-1] if ids[-1] in self.end_tokens else ids)
        if any(token in inner for token in (*self.banned, *self.end_tokens)):
            return "token_ids has a media token, or an end token before its last, which no answer may"
        if (decoded := self.decode(inner)) != text:
            return f"its token_ids spell {shown(decoded)} by this model's tokenizer, and the answer is {shown(text)}"
        return None

    @cached_property
    def _unspeakable(self) -> tuple[str, ...]:
        words = (self.decode([token]) for token in (*self.banned, *self.end_tokens))
        return tuple(word for word in words if word)  # a row of the vocabulary's padding has none

    def _may_spell(self, text: str) -> bool:
        """Returns whether a text may spell such a token, without tokenizing it: a file may hold many answers."""
        return any(word in text for word in self._unspeakable)

    def _spelt(self, text: str) -> str | None:
        """Returns the kind of token that a text spells and no answer may hold; None where there is none."""
        tokens = set(self.tokenize(text))
        kinds = {"a media token": self.banned, "an end token": self.end_tokens}
        return next((kind for kind, refused in kinds.items() if tokens & set(refused)), None)

    def taken(self, rollout: Rollout, row: int) -> dict[str, Tensor]:
        """Returns the tensors from which `replayed` evaluates an answer again.

        These are its tokens [T], their recorded log-probs [T], and whether it is finished [1].
        """
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
        """Returns a rollout of answers kept by `taken`, one per prompt, sampled by plans like this; no network call."""
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
        """Returns log-probs and entropies of the view's answers by the weights now in place.

        Raises ConfigError for a view of something but decisions.
        """
        if not isinstance(view, DecisionView):
            raise ConfigError(f"a token policy evaluates decisions, not a {type(view).__name__}")
        log_prob, entropy, *_ = self._read(rollout, rollout.blocks[view.block], view)
        return TokenDecisions(log_prob, entropy)

    def _read(
        self, rollout: Rollout, block: DecisionBlock, view: DecisionView, *, has_certainty: bool = False
    ) -> list[Tensor]:
        """Returns log-probs, entropies and, if asked, self-certainties of the view's tokens, [B, K] each."""
        self.rest_engine()
        trace: TokenTrace = rollout.trace
        spans = TokenSpans.of(block, view)
        edges = spans.edges(block)
        place = torch.full((after(block.edge) + 1,), len(edges))  # the last is read by edge -1
        place[edges] = torch.arange(len(edges))
        entry = place[block.edge].to(self.backbone.device)  # [B, K]
        nothing = (entry.new_zeros(0),) * (3 if has_certainty else 2)
        found = (
            self._token_log_probs(trace, rollout.prompt, block, spans, has_certainty=has_certainty)
            if len(edges)
            else nothing
        )
        return [torch.cat([values, values.new_zeros(1)])[entry] for values in found]

    def recorded(self, rollout: Rollout, view: View) -> TokenDecisions:
        """Returns the log-probs by the weights that sampled the answers, from the trace.

        Raises ValueError where they are not recorded.
        """
        assert isinstance(view, DecisionView), "only decisions are recorded"
        trace: TokenTrace = rollout.trace
        if not trace.is_recorded:
            raise ValueError("the log-probs of offline answers are not recorded; recompute the rollout first")
        block = rollout.blocks[view.block]
        is_inside = torch.isin(block.call, view.calls)  # [B, K]
        values = torch.where(is_inside, trace.completions.log_prob[:, : block.call.shape[1]], torch.zeros(()))
        return TokenDecisions(values.to(self.backbone.device))

    @torch.no_grad()
    def recompute(self, rollout: Rollout, size: int) -> Rollout:
        """Returns the rollout with the log-probs of its decisions computed again by the weights now in place."""
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

    def recorded_likelihoods(self, rollout: Rollout) -> Likelihoods:
        """Returns the likelihoods of the answers by the weights that sampled them, from the trace.

        Raises ConfigError where they are not recorded, as of answers of the data.
        """
        trace: TokenTrace = rollout.trace
        if not trace.is_recorded:
            raise ConfigError("a reward needs likelihoods.sampled, and nothing recorded the log-probs of these answers")
        completions = trace.completions
        is_token = torch.arange(completions.tokens.shape[1]) < completions.length[:, None]
        entropy = None if completions.entropy is None else torch.where(is_token, completions.entropy, 0.0)
        return Likelihoods(torch.where(is_token, completions.log_prob, 0.0), entropy)

    @torch.no_grad()
    def likelihoods(self, rollout: Rollout, size: int, *, has_certainty: bool = False) -> Likelihoods:
        """Returns the likelihoods of all answers by the weights now in place, on the CPU."""
        trace: TokenTrace = rollout.trace
        everyone = torch.ones(rollout.num_samples, dtype=torch.bool)  # also answers that are no decisions
        block = answer_block(trace, rollout.prompt, everyone)
        found = torch.zeros(3 if has_certainty else 2, *block.edge.shape)
        for part in DecisionView(torch.arange(count_calls(block))).split(size):
            found += torch.stack(self._read(rollout, block, part, has_certainty=has_certainty)).cpu()
        return Likelihoods(*found.unbind())

    def mean_log_probs(self, rollout: Rollout, ends: Sequence[tuple[str, str] | None], size: int) -> Tensor:
        """Returns the mean log-prob [B] of the tokens of other ends of the answers, at temperature 1.

        NaN where there is no end, or where it spells a media token or an end token.
        """
        means = torch.full((rollout.num_samples,), torch.nan)
        asked = [(row, *end) for row, end in enumerate(ends) if end is not None and self._spelt("".join(end)) is None]
        if not asked:
            return means
        prompts, texts = [], []
        for row, beginning, end in asked:
            prompts.append(rollout.prompts[int(rollout.prompt[row])])
            texts.append(beginning + end)
        keys = [rollout.keys[int(rollout.prompt[row])] for row, *_ in asked]
        given = self.offline(prompts, Outputs(texts=tuple(texts)), keys)
        log_prob = self.likelihoods(given, size).log_prob
        pieces = given.outputs.pieces
        assert pieces is not None, "answers have them"
        for number, (row, beginning, end) in enumerate(asked):
            places = tokens_between(pieces[number], len(beginning), len(beginning) + len(end))
            means[row] = log_prob[number, places].mean()
        return means

    @torch.no_grad()
    def last_states(self, rollout: Rollout, size: int, backbone: Backbone | None = None) -> Tensor:
        """Returns the last hidden states [B, H], float32 on the CPU, at the last tokens of all answers.

        That is the end token of a finished answer. `backbone`: another than the policy's own, of the same network.
        """
        self.rest_engine()
        trace: TokenTrace = rollout.trace
        found = []
        for rows in torch.arange(rollout.num_samples).split(size):
            numbers, place = rollout.prompt[rows].unique(return_inverse=True)
            length = trace.completions.length[rows]
            # states are those from which a token is predicted, so one more stands behind the last
            tokens = torch.nn.functional.pad(trace.completions.tokens[rows, : int(length.max())], (0, 1))
            prompts = [trace.prompts[number] for number in numbers.tolist()]
            self.num_calls += len(rows)
            with self.running():
                states = self._hidden_states(prompts, Answers(place, tokens, length + 1, length), backbone)
            found.append(states.float().cpu())
        return torch.cat(found)

    @torch.no_grad()
    def spreads(self, rollout: Rollout, size: int) -> Tensor:
        """Returns, [B, K] float32 on the CPU, the spread of each sample's group at its tokens, 0 behind the last.

        That is how far apart the answers of the group are in what the weights now in place expect there, see
        `group_spread`. Controls are in no group, and have 0.
        """
        self.rest_engine()
        length: Tensor = rollout.trace.completions.length
        found = torch.zeros(rollout.num_samples, rollout.blocks[0].edge.shape[1])
        for group in rollout.group[~rollout.is_control].unique().tolist():
            rows = ((rollout.group == group) & ~rollout.is_control).nonzero()[:, 0]
            states = [one for part in rows.split(size) for one in self._states_of(rollout, part)]
            with self.running():
                spread = group_spread(states, self.head, rollout.trace.distribution, self.vocabulary_chunk).cpu()
            for row in rows.tolist():
                stop = min(int(length[row]), found.shape[1])
                found[row, :stop] = spread[:stop]
        return found

    def _states_of(self, rollout: Rollout, rows: Tensor) -> tuple[Tensor, ...]:
        """Returns the hidden states [T, H] from which the tokens of each of the answers `rows` are predicted."""
        trace: TokenTrace = rollout.trace
        numbers, place = rollout.prompt[rows].unique(return_inverse=True)
        length = trace.completions.length[rows]
        prompts = [trace.prompts[number] for number in numbers.tolist()]
        answers = Answers(place, trace.completions.tokens[rows, : int(length.max())], length)
        self.num_calls += len(rows)
        with self.running():
            return torch.split(self._hidden_states(prompts, answers), length.tolist())

    def _token_log_probs(
        self,
        trace: TokenTrace,
        prompt_of: Tensor,
        block: DecisionBlock,
        spans: TokenSpans,
        *,
        has_certainty: bool,
    ) -> tuple[Tensor, ...]:
        """Returns log-probs and entropies [N] of the tokens of the spans, one span after the other.

        Raises ConfigError for a truncated distribution whose support the inference engine did not return.
        """
        if self.engine is not None and trace.distribution.is_truncated and trace.completions.support is None:
            raise ConfigError(
                "sampler: the engine does not return which tokens top_p, top_k and min_p kept, and log-probs are taken "
                "over these; start vLLM with --return-sampling-mask (it needs top_k), or leave the three out"
            )
        rows = spans.rows
        prompt = prompt_of[rows].tolist()
        distinct = {id(trace.prompts[number]): trace.prompts[number] for number in prompt}
        place = {name: number for number, name in enumerate(distinct)}
        width, is_tree = int(spans.stop.max()), bool((spans.start > 0).any())
        answers = Answers(
            torch.tensor([place[id(trace.prompts[number])] for number in prompt]),
            trace.completions.tokens[rows, :width],
            spans.stop,
            spans.start if is_tree else None,
            block.edge[rows, :width] if is_tree else None,
        )
        self.num_calls += len(rows)
        support = trace.completions.support_of(rows, spans.start, spans.stop)
        return self._evaluated(
            list(distinct.values()), answers, trace.distribution, support, has_certainty=has_certainty
        )

    def log_probs(
        self,
        prompts: Sequence[EncodedPrompt],
        answers: Answers,
        distribution: SamplingDistribution,
        support: Support | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probs and entropies [N] of the N tokens of the answers."""
        log_prob, entropy, *_ = self._evaluated(prompts, answers, distribution, support)
        return log_prob, entropy

    def _evaluated(
        self,
        prompts: Sequence[EncodedPrompt],
        answers: Answers,
        distribution: SamplingDistribution,
        support: Support | None,
        *,
        has_certainty: bool = False,
    ) -> tuple[Tensor, ...]:
        """Returns log-probs, entropies and, if asked, self-certainties [N] of the N tokens of the answers."""
        lockstep, tokens = self.lockstep, answers.tokens[answers.is_token]
        read = (prompts, answers) if lockstep is None else lockstep.filled(prompts, answers)
        with self.running():
            hidden = self._hidden_states(*read)[: len(tokens)]
            found = token_log_probs(hidden, self.head, tokens, distribution, self.vocabulary_chunk, support)
            if not has_certainty:
                return found
            return *found, self_certainties(hidden, self.head, distribution, self.vocabulary_chunk)

    def _hidden_states(
        self, prompts: Sequence[EncodedPrompt], answers: Answers, backbone: Backbone | None = None
    ) -> Tensor:
        """Returns the states [N, H] from which the tokens of the answers are predicted."""
        backbone, mode = backbone or self.backbone, self._mode_of(answers)
        if not backbone.one_at_a_time:
            return _HIDDEN_BY_MODE[mode](backbone, prompts, answers)
        return hidden_one_at_a_time(_HIDDEN_BY_MODE[mode], backbone, prompts, answers, by_answer=mode == "none")

    def _mode_of(self, answers: Answers) -> SharingMode:
        """Returns how these answers share their prompt: trees by a packed row, which reads shared tokens once.

        Types of models that no test runs share trees by the cache, too, where it is the way that was proven.
        """
        may_pack = self._shared is None and takes_trees(self.backbone.model)
        is_packed = answers.name is not None and self.sharing_mode == "cache" and may_pack
        return "packed" if is_packed else self.sharing_mode


def _refused(prompt: Prompt, text: str, kind: str) -> str:
    """Returns the message about an answer of the data that spells a token it may not hold."""
    shown = repr(text if len(text) <= 60 else f"{text[:20]} ... {text[-35:]}")
    return (
        f"{called(prompt)}: the answer {shown} spells {kind}, which no text may; answers get an end token by themselves"
    )
