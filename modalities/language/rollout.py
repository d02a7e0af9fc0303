"""The rollouts of token policies: groups of answers by plan, and trees of answers."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import DecisionBlock, Prompt, Rollout
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.keys import GroupKey
from mmrl.plans.answers import PROMPT_READS, AnswerPlan, AnswerTree, RethinkingPlan
from mmrl.system.json_server import Lost
from mmrl.system.out_of_memory import Result, in_halves

from ..encoding.inputs import EncodedPrompt
from ..tokens.backbone import Answers, Backbone
from ..tokens.compiled_step import CompiledStep
from ..tokens.completions import Completions, StoppingCriteria, uniforms
from ..tokens.generation import AnswerGenerator
from ..tokens.lockstep import FILLER, Lockstep
from ..tokens.rethinking import BegunAnswers, begun_answers, continued
from ..tokens.sampling import SamplingDistribution, Support
from ..tokens.token_texts import TokenTexts
from ..tokens.trace import TokenTrace, answer_block, count_sampled_tokens, count_spans
from ..tokens.tree_generation import generate_trees
from ..tokens.vllm.engine import Requests, Vllm, VllmEngine
from ..tokens.vllm.launch import Served
from ..tokens.vllm.prompts import question_of
from ..tokens.vllm.protocol import Question, SamplingParams
from ..tokens.vllm.tower_check import TRIED_ANSWERS, TRIED_TOKENS, Trial, check_tower
from ..tokens.vllm.weights import fingerprint
from .model import SharingMode, TokenModel

_TRIED_AT_ONCE = 16


@dataclass(frozen=True)
class RequestedAnswers:
    """The B answers of a rollout that is to be sampled."""

    prompts: list[Prompt]  # those of the groups, and those in disorder
    keys: list[GroupKey]  # of each prompt
    prompt_of: Tensor  # [B] int64, ascending: the prompt of each answer
    seeds: list[int | None]  # B; None: the likeliest tokens
    is_control: Tensor  # [B] bool: to compare with, not to learn from


@dataclass(kw_only=True)
class TokenGenerator(TokenModel, Checked):
    """The half of a token policy that samples answers, by the weights now in place; its settings are the policy's."""

    vocabulary_chunk: Annotated[int, Field(ge=1)] = 2**22  # logits held at once in an update; memory, not the result
    # Answers sampled side by side; memory, not the result. `auto`: as many as the forecast of memory allows (see
    # `memory.budget_gb`).
    answer_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = 256
    # An inference engine that samples the answers, such as `{name: vllm, url: ...}`; null: transformers. The policy
    # still evaluates them, and the run's `correction` says what is done about the difference.
    engine: Vllm | None = None
    num_calls: int = field(default=0, init=False, repr=False)  # answers, or stretches of trees, sampled or evaluated
    _service: VllmEngine | None = field(default=None, init=False, repr=False)
    _is_tower_served: bool = field(default=False, init=False, repr=False)  # as far as prompts had images
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _fitting_batch: int = field(default=0, init=False, repr=False)  # chosen, or halved; 0: not yet known
    _lockstep: Lockstep | None = field(default=None, init=False, repr=False)
    _probed: Backbone | None = field(default=None, init=False, repr=False)  # with what a model told when it was loaded
    # how an update shares prompts, as it was proven, and why not as wanted
    _shared: tuple[SharingMode, str] | None = field(default=None, init=False, repr=False)

    _pieces: TokenTexts = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range."""
        super().__post_init__()
        self._pieces = TokenTexts(self.decode)

    @property
    def declaration(self) -> PolicyDeclaration:
        """Returns what answers provide: an inference engine gives the log-prob of each token and no entropy.

        The spread is not recorded; it is read where an advantage requires it.
        """
        has_engine = self.engine is not None
        provides = frozenset({"log_prob", "spread"} if has_engine else {"log_prob", "entropy", "spread"})
        return PolicyDeclaration(provides=provides, has_inference_engine=has_engine)

    @property
    def precision(self) -> torch.dtype:
        """Returns the dtype of the network calls."""
        assert self._placement is not None, "prepare() comes first"
        return self._placement.dtype

    @property
    def lockstep(self) -> Lockstep | None:
        """Returns the lockstep with other processes where weights are sharded, else None."""
        maximum = None if self._placement is None else self._placement.maximum
        if maximum is None:
            return None
        if self._lockstep is None or self._lockstep.maximum is not maximum:
            self._lockstep = Lockstep(maximum, self.encode([FILLER])[0], self.end_tokens[0])
        return self._lockstep

    @property
    def answers_at_once(self) -> int:
        """Returns how many answers are sampled side by side; those of the trials of a start, before `auto` is known."""
        return self._fitting_batch or (_TRIED_AT_ONCE if self.answer_batch == "auto" else self.answer_batch)

    def answer_at_once(self, count: int) -> None:
        """Samples `count` answers side by side from now on, in the place of `auto`."""
        self._fitting_batch = count

    def longest_prompt(self, prompts: Sequence[Prompt]) -> int:
        """Returns the tokens of the longest of some prompts, their media included; unreadable ones have none."""
        longest = 0
        for prompt in prompts:
            with suppress(ConfigError):
                longest = max(longest, len(self.encode([prompt])[0]))
        return longest

    @property
    def compiled_step(self) -> CompiledStep | None:
        """Returns the compiled decoding step; None: the network samples as it is."""
        return None

    def use(self, backbone: Backbone) -> None:
        """Uses a backbone with what the model told when it was loaded."""
        self._probed = backbone

    def share(self, way: SharingMode, reason: str = "") -> None:
        """Shares prompts in this way from now on; the reason says why not in the way that is set."""
        self._shared = way, reason

    @contextmanager
    def without_sharing(self) -> Iterator[None]:
        """Runs a prompt once for each of its answers in the block."""
        before = self._shared
        self.share("none", "switched off")
        try:
            yield
        finally:
            self._shared = before

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], plans: Sequence[AnswerPlan], keys: Sequence[GroupKey]) -> Rollout:
        """Samples one group of answers per prompt by its plan; the tokens of each answer have a seed of their own."""
        plan = plans[0]
        if isinstance(plan, AnswerTree):
            return self._rollout_trees(prompts, cast("Sequence[AnswerTree]", plans), keys)
        requested = self._requested(prompts, plans, keys)
        if isinstance(plan, RethinkingPlan):
            return self._rollout_rethought(requested, plan)
        trace = self.generate(requested.prompts, requested.prompt_of, requested.seeds, plan)
        is_decision = decides(trace, plan) & ~requested.is_control if plan.temperature > 0 else None
        rollout = self.assemble(requested.prompts, requested.keys, requested.prompt_of, trace, is_decision)
        return replace(rollout, is_control=requested.is_control)

    @torch.no_grad()
    def sample_ahead(self, prompts: Sequence[Prompt], plans: Sequence[AnswerPlan], keys: Sequence[GroupKey]) -> None:
        """Lets the inference engine begin to sample what `rollout` will be asked for next; returns at once.

        It samples by the weights now in place. Prompts that cannot be read are left to `rollout`.
        """
        assert self.engine is not None, "asked of policies with an engine"
        service, plan = self._engine_client(self.engine), plans[0]
        service.follow(self.weights.parameters, self.export, self.end_tokens[0])

        def requests() -> Requests:
            questions, prompt_of, seeds = list[Question](), list[int](), list[int]()
            for prompt, own_plan, key in zip(prompts, plans, keys, strict=True):
                group = self._requested([prompt], [own_plan], [key])
                try:
                    own = self._questions(group.prompts, self.encode(group.prompts))
                except ConfigError:  # raised again by `rollout`
                    continue
                prompt_of += [len(questions) + row for row in group.prompt_of.tolist()]
                seeds += [seed for seed in group.seeds if seed is not None]
                questions += own
            return questions, prompt_of, seeds

        service.begin(requests, self._sampling_params(plan))

    def _requested(
        self, prompts: Sequence[Prompt], plans: Sequence[AnswerPlan], keys: Sequence[GroupKey]
    ) -> RequestedAnswers:
        """Returns the answers of one group per prompt, also to prompts in disorder where the plan has controls."""
        plan = plans[0]
        assert all(replace(p, num_samples=1) == replace(plan, num_samples=1) for p in plans), "plans of two samplers"
        requests: list[tuple[Prompt, GroupKey, range, int]] = []  # prompt, key, numbers of members, the first control
        for prompt, key, count in zip(prompts, keys, (p.num_samples for p in plans), strict=True):
            requests.append((prompt, key, range(count + plan.has_greedy), count))
            control = self.control(prompt, key) if plan.num_controls else None
            if control is not None:
                requests.append((control, key, range(count, count + plan.num_controls), count))
        members = [
            (row, None if plan.has_greedy and n >= first else self._seed(key, n), n >= first)
            for row, (_, key, numbers, first) in enumerate(requests)
            for n in numbers
        ]
        return RequestedAnswers(
            prompts=[prompt for prompt, *_ in requests],
            keys=[key for _, key, *_ in requests],
            prompt_of=torch.tensor([row for row, *_ in members]),
            seeds=[seed for _, seed, _ in members],
            is_control=torch.tensor([one for *_, one in members]),
        )

    def _seed(self, key: GroupKey, member: int) -> int:
        """Returns the seed of a member's tokens; those of an engine's answers in one request count up."""
        if self.engine is not None and self.engine.one_request:
            return (key.seed_for("tokens") >> 1) + member  # below 2^63 for all members
        return key.seed_for("tokens", member)

    def control(self, prompt: Prompt, key: GroupKey) -> Prompt | None:
        """Returns the prompt with its media in disorder, by the group's key; None where its media have no order.

        Raises ConfigError for a modality without such media.
        """
        raise ConfigError(
            f"sampler.controls: modality {type(self).__name__} has no media to put in disorder; 'video' has"
        )

    def generate(
        self, prompts: Sequence[Prompt], prompt_of: Tensor, seeds: Sequence[int | None], plan: AnswerPlan
    ) -> TokenTrace:
        """Samples n answers, answer i to prompt `prompt_of[i]` (ascending) by `seeds[i]`; each prompt is read once.

        An answer whose seed is None consists of the likeliest tokens.
        """
        encoded = self.encode(prompts)
        if self.engine is not None:
            completions = self._generate_by_engine(self.engine, prompts, encoded, prompt_of, seeds, plan)
        else:
            own = self._generate(encoded, prompt_of, uniforms(seeds, plan.max_tokens), plan)
            assert own is not None, "a rollout of no prompts"
            completions = own
        self.num_calls += len(seeds)
        trace = TokenTrace(tuple(encoded), completions, self._distribution(plan), is_recorded=True)
        self.sampled(trace, prompt_of)
        return trace

    def sampled(self, trace: TokenTrace, prompt_of: Tensor) -> None:
        """Looks at answers that were just sampled; prompt_of: [B] the prompt of each. Most policies need not."""

    def _generate_by_engine(
        self,
        engine: Vllm,
        prompts: Sequence[Prompt],
        encoded: Sequence[EncodedPrompt],
        prompt_of: Tensor,
        seeds: Sequence[int | None],
        plan: AnswerPlan,
    ) -> Completions:
        """Samples the answers by the inference engine, with the weights now in place here.

        Raises ConfigError for greedy answers, which an engine does not give.
        """
        own = [seed for seed in seeds if seed is not None]
        if len(own) < len(seeds):
            raise ConfigError("sampler.greedy: modality.engine samples no greedy answer; leave one of the two out")
        service = self._engine_client(engine)
        questions = self._questions(prompts, encoded)
        has_media = [bool(question.images or question.items) for question in questions]
        first = has_media.index(True) if any(has_media) else None
        if first is not None and not self._is_tower_served and self.lockstep is None:
            check_tower([*self.adapted_tower.values()], partial(self._tried, service, questions[first], encoded[first]))
            self._is_tower_served = True
        service.follow(self.weights.parameters, self.export, self.end_tokens[0])
        return service.generate(questions, prompt_of.tolist(), own, self._sampling_params(plan))

    def _questions(self, prompts: Sequence[Prompt], encoded: Sequence[EncodedPrompt]) -> list[Question]:
        served = self.served
        return [question_of(prompt, own, served) for prompt, own in zip(prompts, encoded, strict=True)]

    def _sampling_params(self, plan: AnswerPlan) -> SamplingParams:
        distribution = (plan.temperature, plan.top_p, plan.top_k, plan.min_p)
        return SamplingParams(*distribution, plan.max_tokens, plan.stop, self.end_tokens, self.banned)

    def settle_ahead(self) -> None:
        """Waits for what is sampled ahead, and raises what its servers did wrong."""
        if self._service is not None:
            self._service.ahead.settle()

    def ahead(self) -> list[dict[str, Tensor]]:
        """Returns the answers of this process that were sampled ahead, as tensors of one dimension, for a checkpoint.

        Waits for them; there are none where a server failed.
        """
        return [] if self._service is None else self._service.ahead.records()

    def restore_ahead(self, records: Sequence[Mapping[str, Tensor]]) -> None:
        """Restores the answers of a checkpoint, those of all processes: each rollout takes its own."""
        assert self.engine is not None, "asked of policies with an engine"
        self._engine_client(self.engine).ahead.restore(records)

    @property
    def num_taken_ahead(self) -> int:
        """Returns how many answers so far were taken from those that were sampled ahead."""
        return 0 if self._service is None else self._service.ahead.num_taken

    def close_engine(self) -> None:
        """Breaks off what the inference engine samples ahead, at the end of a run."""
        if self._service is not None:
            self._service.close()

    def send_weights(self) -> str:
        """Sends the inference engine the weights now in place; returns the name by which it samples with them."""
        assert self.engine is not None, "asked of policies with an engine"
        service = self._engine_client(self.engine)
        tensors, probe = self.weights.parameters, self.end_tokens[0]
        if self.lockstep is None:
            service.follow(tensors, self.export, probe)
        else:
            service.get_ready(probe)
            now = fingerprint(tensors.values())
            if self.lockstep.maximum(int(not service.has(now))):
                service.send(now, self.export_gathered)
        service.has_guests = True
        return service.weights

    def send_shards(self) -> None:
        """Takes part in `send_weights` of the main process, where each process holds a shard of the weights."""
        assert self.engine is not None and self.lockstep is not None, "asked of sharded policies with an engine"
        service = self._engine_client(self.engine)
        if self.lockstep.maximum(int(not service.has(fingerprint(self.weights.parameters.values())))):
            self.export_gathered(None)

    def recover_engine(self, error: Lost) -> None:
        """Waits until all servers are there, and sends them the weights again; raises the error where one is not."""
        assert self._service is not None, "it was used"
        self._service.recover(error)

    def share_weights(self, name: str) -> None:
        """Samples by the weights now in place, which another process of the run has sent under this name.

        Raises ConfigError for a server that sleeps.
        """
        assert self.engine is not None, "asked of policies with an engine"
        if self.engine.sleep:
            raise ConfigError("engine.sleep: several processes cannot share a server that sleeps; set it to 0")
        self._engine_client(self.engine).share(self.weights.parameters, name, self.end_tokens[0])
        self._is_tower_served = True  # that process tries it

    def rest_engine(self) -> None:
        """Lets an inference engine that sleeps between rollouts free its memory, until it samples again."""
        if self._service is not None:
            self._service.rest()

    def _engine_client(self, engine: Vllm) -> VllmEngine:
        if self._service is None:
            self._service = VllmEngine(engine, self.num_known_tokens, self.served)
        return self._service

    @property
    @abstractmethod
    def num_known_tokens(self) -> int:
        """Returns how many tokens the network has log-probs of; no process gathers anything for it."""

    @abstractmethod
    def export_gathered(self, folder: Path | None) -> None:
        """Writes what `export` writes of weights that processes share; `folder` is None where another one writes.

        All processes must call it. None holds more than a part of the weights at a time.
        """

    @property
    @abstractmethod
    def served(self) -> Served:
        """Returns what a server of this model must serve."""

    def _tried(self, service: VllmEngine, question: Question, encoded: EncodedPrompt) -> Trial:
        """Samples some answers of the server to a question, by the weights now in place."""
        service.follow({**self.weights.parameters, **self.adapted_tower}, self.export, self.end_tokens[0])
        sampling = SamplingParams(1.0, 1.0, None, 0.0, TRIED_TOKENS, (), self.end_tokens, self.banned)
        completions = service.generate([question], [0] * TRIED_ANSWERS, range(TRIED_ANSWERS), sampling)
        device = self.backbone.device
        tokens, length = completions.tokens.to(device), completions.length.to(device)
        answers = Answers(torch.zeros_like(length), tokens, length)
        distribution = SamplingDistribution(1.0, banned=self.banned)
        log_prob = completions.log_prob.to(device)[answers.is_token]
        return Trial(log_prob, lambda: self.log_probs([encoded], answers, distribution)[0])

    @property
    def adapted_tower(self) -> Mapping[str, Tensor]:
        """Returns the adapter's tensors in the vision tower and connector, trained or not, by name."""
        return {}

    @abstractmethod
    def log_probs(
        self,
        prompts: Sequence[EncodedPrompt],
        answers: Answers,
        distribution: SamplingDistribution,
        support: Support | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probs and entropies [N] of the N tokens of the answers."""

    def _rollout_trees(
        self, prompts: Sequence[Prompt], plans: Sequence[AnswerTree], keys: Sequence[GroupKey]
    ) -> Rollout:
        """Samples one tree of answers per prompt; the samples of a group are the leaves of its trees.

        Raises ConfigError with an inference engine, and where processes share the weights.
        """
        plan = plans[0]
        if self.engine is not None or self.lockstep is not None:
            other = "the engine samples" if self.engine is not None else "sharded processes sample"
            raise ConfigError(f"sampler: {other} no trees of answers; use sampler 'autoregressive'")
        number = [(row, n) for row, p in enumerate(plans) for n in range(p.num_roots)]
        roots = torch.tensor([row for row, _ in number])

        def seed_of(root: int, *path: int) -> int:
            row, own = number[root]
            return keys[row].seed_for("tokens", own, *path)

        encoded = self.encode(prompts)
        trees = self._in_memory(len(number), plan, lambda own: generate_trees(own, encoded, roots, seed_of, plan))
        completions, prompt_of = trees.completions, roots[trees.root]
        trace = TokenTrace(tuple(encoded), completions, self._distribution(plan), is_recorded=True)
        self.sampled(trace, prompt_of)
        num_calls, num_tokens = count_spans(completions), int(completions.length.sum())
        self.num_calls += num_calls
        counts = {
            "tokens/sampled": count_sampled_tokens(completions),
            "tokens/without_sharing": num_tokens,
            "tokens/read_again": trees.num_read_again,
        }
        rollout = self.assemble(prompts, keys, prompt_of, trace, decides(trace, plan))
        return replace(rollout, num_calls=num_calls, counts={**rollout.counts, **counts})

    def _rollout_rethought(self, requested: RequestedAnswers, plan: RethinkingPlan) -> Rollout:
        """Samples groups of answers, and beside each group those of its answers that go on behind a trigger.

        The latter are controls with decisions, all their tokens: a trigger has the log-probs that the policy gives it.
        Raises ConfigError for a trigger that no answer may hold, with an inference engine, and for shared weights.
        """
        if self.engine is not None or self.lockstep is not None:
            raise ConfigError("sampler: answers go on only where the policy samples by itself, with all its weights")
        triggers = [list(self.tokenize(text)) for text in plan.triggers]
        refused = {*self.banned, *self.end_tokens}
        if wrong := [text for text, ids in zip(plan.triggers, triggers, strict=True) if not ids or refused & set(ids)]:
            raise ConfigError(f"sampler.triggers: {wrong[0]!r} spells a media token or an end token, or no token")
        prompts, keys, prompt_of = requested.prompts, requested.keys, requested.prompt_of
        trace = self.generate(prompts, prompt_of, requested.seeds, plan)
        begun = begun_answers(trace.completions, prompt_of, keys, plan, triggers, self.end_tokens)
        if begun is None:
            return self.assemble(prompts, keys, prompt_of, trace, decides(trace, plan))
        further = self._in_memory(
            len(begun.seeds), plan, lambda own: continued(own, trace.prompts, begun, plan.max_tokens)
        )
        further = self._with_log_probs(further, begun, trace)
        self.num_calls += len(begun.seeds)
        plain = replace(trace.completions, name=None)
        everyone = torch.cat([prompt_of, begun.prompt_of])
        order = everyone.argsort(stable=True)
        trace = replace(trace, completions=Completions.stack([plain, further]).select(order))
        rollout = self.assemble(prompts, keys, everyone[order], trace, decides(trace, plan))
        counts = {f"calls/{PROMPT_READS}": len(prompts) + 2 * len(begun.prompt_of.unique())}
        return replace(rollout, is_control=order >= len(prompt_of), counts={**rollout.counts, **counts})

    def _with_log_probs(self, further: Completions, begun: BegunAnswers, trace: TokenTrace) -> Completions:
        """Returns the answers with the log-probs and entropies of what was begun, read once more."""
        log_prob, entropy = further.log_prob.clone(), further.entropy
        assert entropy is not None, "sampled here"
        entropy = entropy.clone()
        before = begun.completions
        for rows in torch.arange(len(before.length)).split(self.answers_at_once):
            numbers, place = begun.prompt_of[rows].unique(return_inverse=True)
            part = before.select(rows)
            answers = Answers(place, part.tokens, part.length)
            found = self.log_probs([trace.prompts[n] for n in numbers.tolist()], answers, trace.distribution)
            is_there = torch.arange(log_prob.shape[1]) < part.length[:, None]
            for table, values in zip((log_prob, entropy), found, strict=True):
                table[rows] = table[rows].masked_scatter(is_there, values.float().cpu())
        return replace(further, log_prob=log_prob, entropy=entropy)

    @torch.no_grad()
    def dummy_rollout(self, plan: AnswerPlan) -> None:
        """Takes part in the network calls of one rollout of other processes by plans of this shape.

        With an inference engine there are none.
        """
        if self.engine is not None:
            return
        self._generate([], torch.zeros(0, dtype=torch.int64), torch.zeros(0, plan.max_tokens), plan)

    def _generate(
        self, prompts: Sequence[EncodedPrompt], prompt_of: Tensor, uniform: Tensor, plan: AnswerPlan
    ) -> Completions | None:
        return self._in_memory(len(prompt_of), plan, lambda own: own.answers(prompts, prompt_of, uniform))

    def _in_memory(self, count: int, plan: AnswerPlan, sampled: Callable[[AnswerGenerator], Result]) -> Result:
        """Returns what is sampled by a generator; anew, in batches of half the size, where memory does not suffice.

        A token depends on its own key, and so not on the batch. Sharded processes do not begin again.
        """

        def run(size: int) -> Result:
            with self.running(), self.sampling():
                return sampled(self._answer_generator(plan, size))

        size = self.answers_at_once
        if self.lockstep is not None:
            return run(size)
        done, self._fitting_batch = in_halves(size, run, "modality.answer_batch", lambda: count)
        return done

    def _answer_generator(self, plan: AnswerPlan, size: int) -> AnswerGenerator:
        stopping = StoppingCriteria(self.end_tokens, plan.stop, self.decode, plan.max_tokens)
        return AnswerGenerator(
            *(self.backbone, self.head, self._distribution(plan), stopping, size, self.lockstep),
            compiled=self.compiled_step,
        )

    def _distribution(self, plan: AnswerPlan) -> SamplingDistribution:
        return SamplingDistribution(plan.temperature, plan.top_p, plan.top_k, plan.min_p, self.banned)

    def assemble(
        self,
        prompts: Sequence[Prompt],
        keys: Sequence[GroupKey],
        prompt_of: Tensor,
        trace: TokenTrace,
        is_decision: Tensor | None,
    ) -> Rollout:
        """Assembles the rollout of the B answers of a trace.

        Args:
            prompt_of: [B] the prompt of each answer. is_decision: [B] bool; None: no answer holds a decision.
        """
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
    """Returns [B] bool: the answers that an update may learn from."""
    is_decision = torch.full((len(trace.completions.length),), plan.temperature > 0)
    return is_decision & trace.completions.is_finished if plan.masks_truncated else is_decision
