"""What policies that answer in tokens draw: groups of answers by plan, and trees of them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import DecisionBlock, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.plans.answers import PROMPT_READS, AnswerPlan, AnswerTree

from ..encoding.inputs import EncodedPrompt
from ..tokens.backbone import Answers
from ..tokens.completions import Completions, Ending, uniforms
from ..tokens.generation import Writer
from ..tokens.lockstep import FILLER, Lockstep
from ..tokens.sampling import Shaping, Support
from ..tokens.token_texts import Pieces
from ..tokens.trace import TokenTrace, answer_block, count_sampled_tokens, count_stretches
from ..tokens.tree_generation import generate_trees
from ..tokens.vllm.engine import Vllm, VllmEngine
from ..tokens.vllm.prompts import question_of
from ..tokens.vllm.protocol import Question, Sampling
from ..tokens.vllm.tower_check import TRIED_ANSWERS, TRIED_TOKENS, Trial, check_tower
from .model import TokenModel


@dataclass(kw_only=True)
class TokenGenerator(TokenModel):
    """The half of a token policy that draws answers, by the weights now in place; its settings are the policy's."""

    vocabulary_chunk: int = 2**22
    answer_batch: int = 256
    engine: Vllm | None = None
    num_calls: int = field(default=0, init=False, repr=False)  # answers, or stretches of trees, drawn or evaluated
    _service: VllmEngine | None = field(default=None, init=False, repr=False)
    _is_tower_served: bool = field(default=False, init=False, repr=False)  # as far as images were asked about
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _lockstep: Lockstep | None = field(default=None, init=False, repr=False)

    _pieces: Pieces = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._pieces = Pieces(self.decode)
        for name in ("vocabulary_chunk", "answer_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def facts(self) -> frozenset[str]:
        """What is known of each token beside its place; another engine gives no entropy."""
        return frozenset({"log_prob"} if self.engine is not None else {"log_prob", "entropy"})

    @property
    def precision(self) -> torch.dtype:
        """Of the network calls."""
        assert self._placement is not None, "prepare() comes first"
        return self._placement.dtype

    @property
    def lockstep(self) -> Lockstep | None:
        """The processes to keep step with, where weights are sharded."""
        maximum = None if self._placement is None else self._placement.maximum
        if maximum is None:
            return None
        if self._lockstep is None or self._lockstep.maximum is not maximum:
            self._lockstep = Lockstep(maximum, self.encode([FILLER])[0], self.end_tokens[0])
        return self._lockstep

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[AnswerPlan], keys: Sequence[GroupKey]) -> Rollout:
        """Draws one group of answers per prompt by its plan, every member's tokens from its own stream."""
        plan = plans[0]
        if isinstance(plan, AnswerTree):
            return self._rollout_trees(prompts, cast("Sequence[AnswerTree]", plans), keys)
        assert all(replace(p, num_samples=1) == replace(plan, num_samples=1) for p in plans), "plans of two samplers"
        asked: list[tuple[Prompt, GroupKey, range, int]] = []  # members that are asked this, the first control
        for prompt, key, count in zip(prompts, keys, (p.num_samples for p in plans), strict=True):
            asked.append((prompt, key, range(count + plan.has_greedy), count))
            control = self.control(prompt, key) if plan.num_controls else None
            if control is not None:
                asked.append((control, key, range(count, count + plan.num_controls), count))
        members = [
            (row, None if plan.has_greedy and n >= first else key.seed_for("tokens", n), n >= first)
            for row, (_, key, numbers, first) in enumerate(asked)
            for n in numbers
        ]
        prompt_of, is_control = torch.tensor([row for row, *_ in members]), torch.tensor([one for *_, one in members])
        trace = self.generate([prompt for prompt, *_ in asked], prompt_of, [seed for _, seed, _ in members], plan)
        is_decision = decides(trace, plan) & ~is_control
        everyone, of_group = [prompt for prompt, *_ in asked], [key for _, key, *_ in asked]
        rollout = self.assemble(everyone, of_group, prompt_of, trace, is_decision if plan.temperature > 0 else None)
        return replace(rollout, is_control=is_control)

    def control(self, prompt: Prompt, key: GroupKey) -> Prompt | None:
        """The prompt with its media in disorder, drawn by the group's key; None for one that has none with an order."""
        raise ConfigError(
            f"sampler.controls: modality {type(self).__name__} has no media to put in disorder; 'video' has"
        )

    def generate(
        self, prompts: Sequence[Prompt], prompt_of: Tensor, seeds: Sequence[int | None], plan: AnswerPlan
    ) -> TokenTrace:
        """Draws n answers, answer i to prompt `prompt_of[i]` (ascending) by `seeds[i]`; each prompt is read once.

        An answer whose seed is None is that of the likeliest tokens.
        """
        encoded = self.encode(prompts)
        if self.engine is not None:
            completions = self._generate_by_engine(self.engine, prompts, encoded, prompt_of, seeds, plan)
        else:
            own = self._generate(encoded, prompt_of, uniforms(seeds, plan.max_tokens), plan)
            assert own is not None, "a rollout of no prompts"
            completions = own
        self.num_calls += len(seeds)
        return TokenTrace(tuple(encoded), completions, self._shaping(plan), is_recorded=True)

    def _generate_by_engine(
        self,
        engine: Vllm,
        prompts: Sequence[Prompt],
        encoded: Sequence[EncodedPrompt],
        prompt_of: Tensor,
        seeds: Sequence[int | None],
        plan: AnswerPlan,
    ) -> Completions:
        """The same by the engine, with the weights that are in place here."""
        own = [seed for seed in seeds if seed is not None]
        if len(own) < len(seeds):
            raise ConfigError("sampler.greedy: modality.engine draws no greedy answer; leave one of the two out")
        service = self._service = self._service or VllmEngine(engine, len(self.head.weight))
        shaping = (plan.temperature, plan.top_p, plan.top_k, plan.min_p)
        sampling = Sampling(*shaping, plan.max_tokens, plan.stop, self.end_tokens, self.banned)
        questions = list(map(question_of, prompts, encoded))
        shown = next((number for number, question in enumerate(questions) if question.images), None)
        if shown is not None and not self._is_tower_served and self.lockstep is None:
            check_tower([*self.adapted_tower.values()], partial(self._tried, service, questions[shown], encoded[shown]))
            self._is_tower_served = True
        service.follow(self.weights.parameters, self.export, self.end_tokens[0])
        return service.generate(questions, prompt_of.tolist(), own, sampling)

    def _tried(self, service: VllmEngine, question: Question, encoded: EncodedPrompt) -> Trial:
        """Some answers of the server to a question, by the weights that are in place now."""
        service.follow({**self.weights.parameters, **self.adapted_tower}, self.export, self.end_tokens[0])
        sampling = Sampling(1.0, 1.0, None, 0.0, TRIED_TOKENS, (), self.end_tokens, self.banned)
        completions = service.generate([question], [0] * TRIED_ANSWERS, range(TRIED_ANSWERS), sampling)
        device = self.backbone.device
        tokens, length = completions.tokens.to(device), completions.length.to(device)
        answers = Answers(torch.zeros_like(length), tokens, length)
        shaping = Shaping(1.0, banned=self.banned)
        said = completions.log_prob.to(device)[answers.is_token]
        return Trial(said, lambda: self.log_probs([encoded], answers, shaping)[0])

    @property
    def adapted_tower(self) -> Mapping[str, Tensor]:
        """The adapter's tensors in what turns images into tokens, trained or not."""
        return {}

    @abstractmethod
    def log_probs(
        self, prompts: Sequence[EncodedPrompt], answers: Answers, shaping: Shaping, support: Support | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the N tokens of the answers."""

    def _rollout_trees(
        self, prompts: Sequence[Prompt], plans: Sequence[AnswerTree], keys: Sequence[GroupKey]
    ) -> Rollout:
        """The same where a group is a tree: its leaves, next to each other."""
        plan = plans[0]
        if self.engine is not None or self.lockstep is not None:
            other = "the engine draws" if self.engine is not None else "sharded processes draw"
            raise ConfigError(f"sampler: {other} no trees of answers; use sampler 'autoregressive'")
        number = [(row, n) for row, p in enumerate(plans) for n in range(p.num_roots)]
        roots = torch.tensor([row for row, _ in number])

        def seed_of(root: int, *path: int) -> int:
            row, own = number[root]
            return keys[row].seed_for("tokens", own, *path)

        encoded = self.encode(prompts)
        with self.running():
            trees = generate_trees(self._writer(plan), encoded, roots, seed_of, plan)
        completions, prompt_of = trees.completions, roots[trees.root]
        trace = TokenTrace(tuple(encoded), completions, self._shaping(plan), is_recorded=True)
        num_calls, num_tokens = count_stretches(completions), int(completions.length.sum())
        self.num_calls += num_calls
        counts = {
            "tokens/sampled": count_sampled_tokens(completions),
            "tokens/without_sharing": num_tokens,
            "tokens/read_again": trees.num_read_again,
        }
        rollout = self.assemble(prompts, keys, prompt_of, trace, decides(trace, plan))
        return replace(rollout, num_calls=num_calls, counts={**rollout.counts, **counts})

    @torch.no_grad()
    def dummy_rollout(self, plan: AnswerPlan) -> None:
        """Takes part in the network calls of other processes' rollouts."""
        self._generate([], torch.zeros(0, dtype=torch.int64), torch.zeros(0, plan.max_tokens), plan)

    def _generate(
        self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, uniform: Tensor, plan: AnswerPlan
    ) -> Completions | None:
        with self.running():
            return self._writer(plan).answers(prompts, prompt_of, uniform)

    def _writer(self, plan: AnswerPlan) -> Writer:
        ending = Ending(self.end_tokens, plan.stop, self.decode, plan.max_tokens)
        return Writer(self.backbone, self.head, self._shaping(plan), ending, self.answer_batch, self.lockstep)

    def _shaping(self, plan: AnswerPlan) -> Shaping:
        return Shaping(plan.temperature, plan.top_p, plan.top_k, plan.min_p, self.banned)

    def assemble(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[GroupKey],
        prompt_of: Tensor,
        trace: TokenTrace,
        is_decision: Tensor | None,
    ) -> Rollout:
        """The rollout of the answers of a trace, to prompt `prompt_of` [B] each; `is_decision` None: nothing chosen."""
        count = len(prompt_of)
        outputs = self.outputs_of([prompts[number] for number in prompt_of.tolist()], trace, prompt_of, self._pieces)
        blocks = DecisionBlock.none(count) if is_decision is None else answer_block(trace, prompt_of, is_decision)
        return Rollout(
            prompts=tuple(prompts),
            keys=tuple(keys),
            prompt=prompt_of,
            group=torch.tensor([key.prompt_index for key in keys])[prompt_of],
            episode=torch.arange(count),
            turn=torch.zeros(count, dtype=torch.int64),
            outputs=outputs,
            blocks=(blocks,),
            trace=trace,
            num_calls=count,
            counts={f"calls/{PROMPT_READS}": len(prompts)},
        )


def decides(trace: TokenTrace, plan: AnswerPlan) -> Tensor:
    """[B] bool: the answers that an update may learn from."""
    is_decision = torch.full((len(trace.completions.length),), plan.temperature > 0)
    return is_decision & trace.completions.is_finished if plan.masks_truncated else is_decision
