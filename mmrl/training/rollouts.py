"""The groups of one iteration: sampled, scored while the next are sampled, filtered, refilled."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from mmrl.core.config import GroupSettings
from mmrl.core.contracts import Advantage, ConfigError, Modality, Prefetching, Sampler, SamplingAhead
from mmrl.core.data import Paths, Prompt, Rollout, Scores, WeightsName
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.keys import GroupKey
from mmrl.core.likelihoods import SPREAD
from mmrl.media.mp4 import Video
from mmrl.plans.groups import GroupPlan
from mmrl.plans.offline import roll_out
from mmrl.plans.sizes import policy_for
from mmrl.prompts.filtering import reader_of
from mmrl.prompts.stream import PromptStream
from mmrl.scoring.answer_metrics import format_metrics
from mmrl.scoring.metrics import degenerate_groups, groups_outside, plain_total
from mmrl.scoring.properties import property_metrics
from mmrl.scoring.scorer import Judgement, Scorer, ScoringQueue
from mmrl.training.allocation import further_members
from mmrl.training.difficulty import Difficulty, cued, group_means, guide, noisy
from mmrl.training.processes import Processes
from mmrl.training.sampling_process import GroupRequest, SamplingProcess
from mmrl.training.sharding import dummy_rollout
from mmrl.training.small_videos import small_videos
from mmrl.training.thought import ThoughtReader

KeyedPrompt = tuple[GroupKey, Prompt]
Round = tuple[Rollout | None, Judgement, Tensor, Paths | None]  # this process's rollout and its rows; else of all
JudgedRollout = tuple[Rollout | None, Judgement | None]  # of this process; None where it has no group
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collected:
    """The groups of one iteration: the scores of all processes, and the rollout of this process."""

    rollout: Rollout | None  # None: this process has no group
    scores: Scores
    local_rows: Tensor  # [B] int64: where the samples of the rollout stand in the scores
    kept: list[int]  # prompt indices of the groups to learn from, ascending
    paths: Paths | None  # of the decisions of the samples of all processes, in the order of the scores
    num_calls: int  # network evaluations of this process
    metrics: dict[str, float]  # of the rollouts of all processes, without their scores
    videos: tuple[Video, ...] = ()  # small copies of this process's, where some are to be saved; else none

    def own(self, advantages: Tensor) -> Tensor:
        """Returns the rows [B, 1] or [B, K] of this process's samples, of values [B_all] or [B_all, K_all] of all
        processes.

        The values are advantages, or an update mask. Samples of other processes may have more decisions than any here.
        """
        if advantages.dim() == 1:
            return advantages[self.local_rows, None]
        assert self.rollout is not None, "this process has no group"
        return advantages[self.local_rows, : self.rollout.blocks[0].edge.shape[1]]


@dataclass(frozen=True)
class _Changed:
    """Groups of prompts in another form, which are learned from instead of those of the prompts as they are."""

    rounds: tuple[Round, ...] = ()
    originals: frozenset[int] = frozenset()  # prompt indices whose groups are not learned from
    kept: list[int] = field(default_factory=list)  # prompt indices of the groups to learn from
    metrics: dict[str, float] = field(default_factory=dict)
    num_calls: int = 0  # of this process, for cues


@dataclass(frozen=True)
class MemberRequest:
    """Members of a group that are sampled in one call: all that the group begins with, or further ones."""

    key: GroupKey  # of these members
    prompt: Prompt
    size: int
    planned_by: GroupKey  # the group's own: further members take the same steps

    @classmethod
    def whole(cls, keyed: KeyedPrompt, size: int) -> "MemberRequest":
        """Returns the request of a group of `size` members."""
        return cls(*keyed, size, keyed[0])


@dataclass(frozen=True)
class Collector:
    """Samples groups until enough are worth learning from, or the refill rounds are used up."""

    policy: Modality
    sampler: Sampler
    scorer: Scorer
    prompts: PromptStream
    processes: Processes
    groups: GroupSettings
    seed: int
    group_size: int
    wanted: int  # groups per iteration
    chunk: int  # groups sampled at once on one process
    overlap: bool
    advantage: Advantage  # decides which groups are degenerate
    stores_on_host: bool = False  # scored rollouts, in the CPU's memory
    thoughts: ThoughtReader = field(default_factory=ThoughtReader)  # for rewards that need what the policy thinks
    ahead: int = 0  # iterations that a rollout may be sampled ahead of
    elsewhere: SamplingProcess | None = None  # what samples ahead; None: the policy's inference engine
    saves: Callable[[int], bool] = lambda iteration: False  # whether samples of an iteration are saved for people
    difficulty: Difficulty | None = None  # of prompts, where `groups.augment` changes them
    _videos: list[Video] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self, iteration: int, weights: WeightsName) -> Collected:
        """Returns the groups of `iteration`, sampled under `weights`. Every process must call it.

        Raises ConfigError where too many prompts cannot be read, RunError where too many samples could not be scored.
        """
        self._videos.clear()
        rounds: list[Round] = []
        kept: list[int] = []
        hinted: list[Prompt] = []  # of groups that failed as a whole: taken again, with a hint
        num_unread = num_hinted = 0
        num_ahead = self._num_ahead()
        num_rounds = 1 + (self.groups.max_refills if self.groups.degenerate == "refill" else 0)
        for number in range(num_rounds):
            taken_again = self.prompts.again(hinted[: self.wanted - len(kept)])
            num_hinted += len(taken_again)
            numbered = taken_again + self.prompts.take(self.wanted - len(kept) - len(taken_again))
            keyed = [(GroupKey(self.seed, iteration, index, number), prompt) for index, prompt in numbered]
            rollout, judgement, unread = self._sampled(keyed, iteration, weights)
            self._check_unread(unread)
            num_unread += len(unread)
            if number == 0 and self.groups.more is not None:
                rollout, judgement = self._with_further_members((rollout, judgement), keyed, iteration, weights)
            everyone, local_rows, paths = self._gather(rollout, judgement)
            rounds.append((rollout, everyone, local_rows, paths))
            read = [one for one in keyed if one[0].prompt_index not in unread]
            kept += self._worth_keeping(everyone.scores, paths, read)
            hinted = [with_hint(prompt, self.groups.hint) for prompt in self._failed(everyone.scores, read, kept)]
            if len(kept) == self.wanted:
                break
        changed = _Changed()
        if self.groups.augment is not None:
            changed = self._changed(everyone.scores, read, iteration, weights)
            rounds += changed.rounds
            kept = [index for index in kept if index not in changed.originals] + changed.kept
        metrics = self._statistics([rollout for rollout, *_ in rounds if rollout is not None]) | changed.metrics
        judged = Judgement.join([judgement for _, judgement, *_ in rounds])
        spent = zip(self.scorer.names, judged.seconds, strict=True)
        metrics |= {f"time/reward/{name}": seconds for name, seconds in spent}
        if reader_of(self.policy) is not None:
            metrics["groups/unread"] = float(num_unread)
        if self.groups.hint is not None:
            metrics["groups/hinted"] = float(num_hinted)
        if self.ahead:
            stale = sum(self.processes.gather([self._num_ahead() - num_ahead]))  # each by one iteration
            metrics["rollout/staleness"] = stale / max(1, len(judged.scores.group))
        if self.groups.more is not None:
            sizes = judged.scores.prompt_index.bincount()
            metrics["groups/largest"] = float(sizes.max()) if len(sizes) else 0.0
        metrics |= property_metrics(judged.scores, judged.properties) | format_metrics(judged.scores, judged.formats)
        joined = _join(rounds, judged.scores, sorted(kept), metrics)
        return replace(joined, num_calls=joined.num_calls + changed.num_calls, videos=tuple(self._videos))

    def _changed(
        self, scores: Scores, keyed: Sequence[KeyedPrompt], iteration: int, weights: WeightsName
    ) -> "_Changed":
        """Samples prompts that are too easy or too hard once more, in another form. Every process must call it.

        scores: of all processes, of the groups of prompts as they are.
        """
        settings, difficulty = self.groups.augment, self.difficulty
        assert settings is not None and difficulty is not None, "checked by the caller"
        prompts = {key.prompt_index: prompt for key, prompt in keyed}
        far = {index: gap for index, gap in difficulty(scores).items() if abs(gap) > settings.tolerance}
        hard = {index: prompts[index] for index, gap in far.items() if gap > 0}
        cues, num_calls = self._cues(hard, group_means(scores), iteration, weights)
        forms = dict[int, Prompt]()
        for index, gap in far.items():
            noise = noisy(prompts[index], -settings.noise * gap, self.seed, iteration, index, "noise")
            form = noise if gap < 0 else cued(prompts[index], cues.get(index, ""), settings.cue * gap)
            forms |= {} if form is None else {index: form}
        metrics = {
            "groups/easier": float(sum(far[index] > 0 for index in forms)),
            "groups/harder": float(sum(far[index] < 0 for index in forms)),
        }
        if not forms:
            return _Changed(metrics=metrics, num_calls=num_calls)
        again = self._keyed_again(list(forms.values()), iteration, 2)
        rollout, judgement, unread = self._sampled(again, iteration, weights)
        everyone, local_rows, paths = self._gather(rollout, judgement)
        pairs = [(one, index) for one, index in zip(again, forms, strict=True) if one[0].prompt_index not in unread]
        return _Changed(
            rounds=((rollout, everyone, local_rows, paths),),
            originals=frozenset(index for _, index in pairs),
            kept=self._worth_keeping(everyone.scores, paths, [one for one, _ in pairs]),
            metrics=metrics,
            num_calls=num_calls,
        )

    def _cues(
        self, hard: Mapping[int, Prompt], means: Mapping[int, float], iteration: int, weights: WeightsName
    ) -> tuple[dict[int, str], int]:
        """Returns answers to hard prompts by a policy that knows the right answer, and this process's network calls.

        Of each prompt that is the best answer, where its total is above the mean of the group that did not know it.
        """
        assert self.groups.augment is not None, "checked by the caller"
        name = self.groups.augment.answer
        guides = {} if name is None else {index: guide(prompt, name) for index, prompt in hard.items()}
        known = {index: prompt for index, prompt in guides.items() if prompt is not None}
        if not known:
            return {}, 0
        again = self._keyed_again(list(known.values()), iteration, 1)
        rollout, judgement, _ = self._sampled(again, iteration, weights)
        original = {key.prompt_index: index for (key, _), index in zip(again, known, strict=True)}
        found = list[tuple[int, float, str]]()
        if rollout is not None and judgement is not None:
            texts, own = rollout.outputs.texts, judgement.scores
            assert texts is not None, "checked when the parts were built"
            rows = zip(own.prompt_index.tolist(), plain_total(own).tolist(), own.valid.tolist(), texts, strict=True)
            found = [(original[index], total, text) for index, total, is_valid, text in rows if is_valid]
        best = dict[int, tuple[float, str]]()
        for index, total, text in self.processes.gather(found):
            if total > best.get(index, (means[index], ""))[0]:
                best[index] = (total, text)
        return {index: text for index, (_, text) in best.items()}, 0 if rollout is None else rollout.num_calls

    def _keyed_again(self, prompts: Sequence[Prompt], iteration: int, number: int) -> list[KeyedPrompt]:
        """Returns changed prompts under new numbers, with the keys of a round."""
        return [(GroupKey(self.seed, iteration, index, number), one) for index, one in self.prompts.again(prompts)]

    def _sampled(
        self, keyed: Sequence[KeyedPrompt], iteration: int, weights: WeightsName
    ) -> tuple[Rollout | None, Judgement | None, dict[int, str]]:
        """Samples and scores this process's share of groups; returns the prompts that no process could read as well."""
        groups = [MemberRequest.whole(one, self.group_size) for one in self.processes.share(keyed)]
        sample = partial(self._sample_groups, groups, iteration)
        rollout, judgement, unread = self.processes.sampled(self.policy, weights, sample)
        return rollout, judgement, dict(self.processes.gather(list(unread.items())))

    def prefetch(self) -> None:
        """Lets the policy begin to decode and encode this process's prompts of the next iteration, if it can.

        Agents see the screens of environments, which are not known before.
        """
        if isinstance(self.policy, Prefetching) and self.policy.sample_kind != "turns":
            numbered = self.processes.share(self.prompts.upcoming(self.wanted))
            self.policy.prefetch([prompt for _, prompt in numbered])

    def sample_ahead(self, iteration: int, weights: WeightsName) -> None:
        """Begins to sample the first groups of `iteration` by `weights` elsewhere; returns at once.

        The prompts, keys and plans are those of the call for that iteration, which takes the samples; groups that
        refill it are sampled then. Every process must call it.
        """
        if self.elsewhere is None:
            self.processes.sampled(self.policy, weights, partial(self._begin, self._upcoming(iteration)))
            return
        with self.processes.lockstep(), self.policy.weights(weights):
            self.sample_elsewhere(iteration, self.policy.weights.parameters)

    def sample_elsewhere(self, iteration: int, weights: Mapping[str, Tensor]) -> None:
        """Lets the other process begin to sample the first groups of `iteration` by trained tensors; returns at once.

        Nothing is begun where a group cannot be planned, which is an error of the iteration.
        """
        assert self.elsewhere is not None, "asked where it is there"
        requests = []
        for chunk in self._chunks(self._upcoming(iteration)):
            with suppress(ValueError):
                plans = tuple(self._plan(one) for one in chunk)
                prompts, keys = tuple(one.prompt for one in chunk), tuple(one.key for one in chunk)
                requests.append(GroupRequest(prompts, plans, keys))
        self.elsewhere.begin(iteration, weights, requests)

    def _upcoming(self, iteration: int) -> list[MemberRequest]:
        """Returns this process's groups of a later iteration, as they begin."""
        keyed = [(GroupKey(self.seed, iteration, index), one) for index, one in self.prompts.upcoming(self.wanted)]
        return [MemberRequest.whole(one, self.group_size) for one in self.processes.share(keyed)]

    def _chunks(self, requests: Sequence[MemberRequest]) -> list[Sequence[MemberRequest]]:
        return [requests[start : start + self.chunk] for start in range(0, len(requests), self.chunk)]

    def _begin(self, groups: Sequence[MemberRequest]) -> None:
        assert isinstance(self.policy, SamplingAhead), "checked when the parts were built"
        if groups:
            plans = [self._plan(one) for one in groups]
            self.policy.sample_ahead([one.prompt for one in groups], plans, [one.key for one in groups])

    def _num_ahead(self) -> int:
        if self.elsewhere is not None:
            return self.elsewhere.num_taken
        return self.policy.num_taken_ahead if self.ahead and isinstance(self.policy, SamplingAhead) else 0

    def _statistics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Returns means and sums, over all processes, of the statistics and counts of the policy's rollouts."""
        everywhere = self.processes.gather([(rollout.statistics(), rollout.counts) for rollout in rollouts])
        return _means([statistics for statistics, _ in everywhere]) | _sums([counts for _, counts in everywhere])

    def _with_further_members(
        self, judged: JudgedRollout, keyed: Sequence[KeyedPrompt], iteration: int, weights: WeightsName
    ) -> JudgedRollout:
        """Returns the rollout and judgement of this process with the further members of its groups. Every process must
        call it.

        Further members are sampled on the process of their group: a process holds whole groups, whose edges are
        numbered there.
        """
        assert self.groups.more is not None, "checked by the caller"
        for number in range(self.groups.more.rounds):
            everyone, *_ = self._gather(*judged)
            names = [key.prompt_index for key, _ in keyed]
            sizes = further_members(everyone.scores, names, self.group_size, self.groups.more, number)
            requests = [
                MemberRequest(replace(key, round=1 + number), prompt, size, key)
                for (key, prompt), size in self.processes.share(list(zip(keyed, sizes, strict=True)))
                if size
            ]
            sample = partial(self._sample_groups, requests, iteration)
            rollout, judgement, _ = self.processes.sampled(self.policy, weights, sample)
            if judged[0] is not None and judged[1] is not None and rollout is not None and judgement is not None:
                judged = Rollout.join([judged[0], rollout]), Judgement.join([judged[1], judgement])
        return judged

    def _sample_groups(
        self, requests: Sequence[MemberRequest], iteration: int
    ) -> tuple[Rollout | None, Judgement | None, dict[int, str]]:
        """Samples this process's groups in chunks; each chunk is scored while the next is sampled.

        Also returns the reason for each prompt that could not be read, by prompt index; such a prompt has no group.
        """
        chunks = self._chunks(requests)
        rollouts, judgements, unread, videos = [], [], dict[int, str](), list[Video]()
        with ScoringQueue(self.scorer, self.processes.device) as queue:
            for number in range(self.processes.maximum(len(chunks))):
                rollout, more = self._sample(chunks[number]) if number < len(chunks) else (None, {})
                unread |= more
                if rollout is None:
                    if self.processes.is_sharded:
                        dummy_rollout(self.policy, self.sampler, self.group_size)
                    continue
                calls = self.policy.num_calls
                thought = self.thoughts(self.policy, rollout, self.scorer.needs)
                if SPREAD in AdvantageDeclaration.of(self.advantage).requires:
                    rollout = self.thoughts.with_spread(self.policy, rollout)
                rollout = replace(rollout, num_calls=rollout.num_calls + self.policy.num_calls - calls)
                if self.overlap and len(chunks) > 1:
                    queue.submit(rollout, iteration, thought)
                else:
                    judgements.append(self.scorer.judge(rollout, iteration, thought))
                videos += small_videos(rollout.outputs) if self.saves(iteration) else []
                kept = rollout.without_videos()
                rollouts.append(kept.on_host() if self.stores_on_host else kept)
                del rollout, kept  # else its videos would be held while the next are sampled
            if not rollouts:
                return None, None, unread
            self._videos.extend(videos)
            return Rollout.join(rollouts), Judgement.join(judgements) if judgements else queue.join(), unread

    def _sample(self, chunk: Sequence[MemberRequest]) -> tuple[Rollout | None, dict[int, str]]:
        """Samples a chunk of groups without prompts that cannot be read; returns their reasons by prompt index."""
        try:
            return self._rollout(chunk), {}
        except ConfigError:
            reader = reader_of(self.policy)
            whys = {one.key.prompt_index: reader.unreadable(one.prompt) for one in chunk} if reader is not None else {}
            unread = {index: why for index, why in whys.items() if why is not None}
            if not unread:
                raise
        rest = [one for one in chunk if one.key.prompt_index not in unread]
        return self._rollout(rest) if rest else None, unread

    def _rollout(self, chunk: Sequence[MemberRequest]) -> Rollout:
        ahead = None if self.elsewhere is None else self.elsewhere.take([one.key for one in chunk])
        if ahead is not None:
            return ahead
        try:
            plans = [self._plan(one) for one in chunk]
        except ValueError as error:  # a random window of each group may leave nothing to train
            raise ConfigError(f"the sampler cannot plan this group: {error}") from error
        return roll_out(self.policy, [one.prompt for one in chunk], plans, [one.key for one in chunk])

    def _plan(self, one: MemberRequest) -> GroupPlan:
        plan: GroupPlan = self.sampler.plan(policy_for(self.policy, one.prompt), one.planned_by, one.size)
        return plan

    def _check_unread(self, unread: Mapping[int, str]) -> None:
        """Counts prompts that no process could read; raises ConfigError when their share of all prompts is too large.

        The share is that of all prompts taken so far, the present pass over the data counted as a whole: an iteration
        may have no more than four prompts.
        """
        for why in unread.values() if self.processes.is_main else ():
            log.warning("left out: %s", why)
        self.prompts.num_unread += len(unread)
        size, allowed = self.prompts.num_prompts, self.scorer.max_failed_share
        total = size * -(-self.prompts.num_taken // size)
        if self.prompts.num_unread > allowed * total:
            first = next(iter(unread.values()), "none in this iteration")
            raise ConfigError(
                f"{self.prompts.num_unread} of {total} prompts could not be read, scoring.max_failed_share allows "
                f"{allowed:.0%}; first failure: {first}"
            )

    def _gather(self, rollout: Rollout | None, judgement: Judgement | None) -> tuple[Judgement, Tensor, Paths | None]:
        """Returns the judgement and the paths of what all processes sampled, in the order of prompt indices.

        The tensor holds the rows of this process's samples in the scores. Seconds are the mean over processes.
        """
        own = [] if rollout is None or judgement is None else [(judgement, _paths(rollout))]
        count = 0 if rollout is None else rollout.num_samples
        gathered = self.processes.gather(own)
        first = self.processes.count_before(count)
        everyone = Judgement.join([judgement for judgement, _ in gathered] or [self.scorer.empty()])
        self.scorer.check(everyone.scores, everyone.first_failures)
        order = everyone.scores.prompt_index.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        paths = _joined([paths for _, paths in gathered])
        seconds = tuple(spent / self.processes.num_processes for spent in everyone.seconds)
        paths = paths[order] if paths is not None else None
        return replace(everyone.select(order), seconds=seconds), place[first : first + count], paths

    def _worth_keeping(self, scores: Scores, paths: Paths | None, keyed: Sequence[KeyedPrompt]) -> list[int]:
        everyone = [key.prompt_index for key, _ in keyed]
        if self.groups.degenerate == "keep":
            return everyone
        is_degenerate = degenerate_groups(scores, self.advantage, paths, self.groups.min_spread)
        if self.groups.mean_between is not None:
            is_degenerate |= groups_outside(scores, *self.groups.mean_between)
        return [index for index in everyone if not is_degenerate[scores.prompt_index == index].all()]

    def _failed(self, scores: Scores, keyed: Sequence[KeyedPrompt], kept: Sequence[int]) -> list[Prompt]:
        """Returns the prompts with a hint none of whose samples has a total above that of a failure."""
        if self.groups.hint is None:
            return []
        is_good = scores.valid & (plain_total(scores) > self.groups.hint_above)
        good = set(scores.prompt_index[is_good].tolist()) | set(kept)
        return [prompt for key, prompt in keyed if key.prompt_index not in good and self.groups.hint in prompt.target]


def with_hint(prompt: Prompt, name: str | None) -> Prompt:
    """Returns the prompt with the hint `name` of its target moved into a line behind its text."""
    target = {key: value for key, value in prompt.target.items() if key != name}
    return replace(prompt, text=f"{prompt.text}\n{prompt.target[str(name)]}", target=target)


def _paths(rollout: Rollout) -> Paths | None:
    return rollout.blocks[0].paths if rollout.blocks else None


def _joined(parts: Sequence[Paths | None]) -> Paths | None:
    present = [paths for paths in parts if paths is not None]
    return Paths.join(present) if present else None


def _means(statistics: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Returns the mean over all samples of each statistic."""
    names = dict.fromkeys(name for part in statistics for name in part)
    joined = {name: torch.cat([part[name] for part in statistics]) for name in names}
    return {name: float(values.mean()) for name, values in joined.items() if len(values)}


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Returns the sums over all processes of the policies' counts, by the names of their metrics."""
    names = dict.fromkeys(name for part in counts for name in part)
    return {name: float(sum(part.get(name, 0) for part in counts)) for name in names}


def _join(rounds: Sequence[Round], scores: Scores, kept: list[int], metrics: dict[str, float]) -> Collected:
    """Joins the rounds of an iteration; prompt indices ascend, since later rounds have higher ones."""
    rollouts = [rollout for rollout, *_ in rounds if rollout is not None]
    sizes = [len(judgement.scores.group) for _, judgement, *_ in rounds]
    return Collected(
        rollout=Rollout.join(rollouts) if rollouts else None,
        scores=scores,
        local_rows=torch.cat([local_rows + sum(sizes[:n]) for n, (_, _, local_rows, _) in enumerate(rounds)]),
        kept=kept,
        paths=_joined([paths for *_, paths in rounds]),
        num_calls=sum(rollout.num_calls for rollout in rollouts),
        metrics=metrics,
    )
