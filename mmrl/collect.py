"""One iteration's groups: drawn, scored while the next are drawn, filtered, refilled."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.allocation import further_members
from mmrl.config import GroupSettings
from mmrl.contracts import Advantage, ConfigError, Modality, Sampler
from mmrl.data import Paths, Prompt, Rollout, Scores, WeightsName
from mmrl.engine import Engine
from mmrl.given import roll_out
from mmrl.keys import GroupKey
from mmrl.prompts import PromptStream
from mmrl.readable import reader_of
from mmrl.score_metrics import degenerate_groups, groups_outside, plain_total
from mmrl.scoring import Judgement, Scorer, ScoringQueue
from mmrl.sharding import idle_rollout

Draw = tuple[GroupKey, Prompt]
Drawn = tuple[Rollout | None, Judgement | None]  # by this process; None where it drew nothing
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collected:
    """The groups of one iteration: scores of all processes in draw order, the rollout of this process's part."""

    rollout: Rollout | None  # None: this process drew nothing
    scores: Scores
    mine: Tensor  # [B] int64: where the samples of the rollout stand in the scores
    kept: list[int]  # draw numbers of the groups to learn from, ascending
    paths: Paths | None  # of the decisions of the samples of all processes, in the order of the scores
    num_calls: int  # network evaluations of this process
    metrics: dict[str, float]  # of what was drawn on all processes, beside its scores

    def own(self, advantages: Tensor) -> Tensor:
        """[B, 1] or [B, K] of this process's samples, from those [B_all] or [B_all, K_all] of everyone: advantages, or
        whether something is learned from.

        Elsewhere samples may have more decisions than any has here.
        """
        if advantages.dim() == 1:
            return advantages[self.mine, None]
        assert self.rollout is not None, "this process drew nothing"
        return advantages[self.mine, : self.rollout.blocks[0].edge.shape[1]]


@dataclass(frozen=True)
class Asked:
    """Members of a group that are drawn at once: all that it begins with, or further ones."""

    key: GroupKey  # of these members
    prompt: Prompt
    size: int
    planned_by: GroupKey  # the group's own: further members take the same steps

    @classmethod
    def whole(cls, draw: Draw, size: int) -> "Asked":
        """A group of `size` members."""
        return cls(*draw, size, draw[0])


@dataclass(frozen=True)
class Collector:
    """Draws groups until enough are worth learning from, or the refill rounds are used up."""

    policy: Modality
    sampler: Sampler
    scorer: Scorer
    prompts: PromptStream
    engine: Engine
    groups: GroupSettings
    seed: int
    group_size: int
    wanted: int  # groups per iteration
    chunk: int  # groups sampled at once on one process
    overlap: bool
    advantage: Advantage  # says which groups teach nothing

    def __call__(self, iteration: int, weights: WeightsName) -> Collected:
        """The groups of `iteration`, sampled under `weights`; every process must call it."""
        rounds: list[tuple[Rollout | None, Scores, Tensor, Paths | None]] = []
        kept: list[int] = []
        hinted: list[Prompt] = []  # of groups that failed as a whole: asked again, with a hint
        num_unread = num_hinted = 0
        seconds = [0.0] * len(self.scorer.names)
        num_rounds = 1 + (self.groups.max_refills if self.groups.degenerate == "refill" else 0)
        for number in range(num_rounds):
            asked_again = self.prompts.again(hinted[: self.wanted - len(kept)])
            num_hinted += len(asked_again)
            numbered = asked_again + self.prompts.draw(self.wanted - len(kept) - len(asked_again))
            draws = [(GroupKey(self.seed, iteration, draw, number), prompt) for draw, prompt in numbered]
            groups = [Asked.whole(draw, self.group_size) for draw in self.engine.share(draws)]
            with self.policy.weights(weights), self.engine.together():
                rollout, judgement, unread = self._draw(groups, iteration)
            unread = dict(self.engine.gather(list(unread.items())))
            self._check_unread(unread)
            num_unread += len(unread)
            if number == 0 and self.groups.more is not None:
                rollout, judgement = self._grown((rollout, judgement), draws, iteration, weights)
            scores, mine, paths, asked = self._gather(rollout, judgement)
            seconds = [before + more for before, more in zip(seconds, asked, strict=True)]
            rounds.append((rollout, scores, mine, paths))
            read = [draw for draw in draws if draw[0].draw not in unread]
            kept += self._worth_keeping(scores, paths, read)
            hinted = [with_hint(prompt, self.groups.hint) for prompt in self._failed(scores, read, kept)]
            if len(kept) == self.wanted:
                break
        metrics = self._watched([rollout for rollout, *_ in rounds if rollout is not None])
        metrics |= {f"time/reward/{name}": spent for name, spent in zip(self.scorer.names, seconds, strict=True)}
        if reader_of(self.policy) is not None:
            metrics["groups/unread"] = float(num_unread)
        if self.groups.hint is not None:
            metrics["groups/hinted"] = float(num_hinted)
        if self.groups.more is not None:
            sizes = rounds[0][1].draw.bincount()
            metrics["groups/largest"] = float(sizes.max()) if len(sizes) else 0.0
        return _join(rounds, sorted(kept), metrics)

    def _watched(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Means and sums, over all processes, of what the policy says of its rollouts."""
        everywhere = self.engine.gather([(rollout.watched(), rollout.counts) for rollout in rollouts])
        return _means([watched for watched, _ in everywhere]) | _sums([counts for _, counts in everywhere])

    def _grown(self, drawn: Drawn, draws: Sequence[Draw], iteration: int, weights: WeightsName) -> Drawn:
        """What this process drew, with the further members of its groups; every process must call it.

        They are drawn where their group was: a process holds groups as a whole, whose edges have numbers of their own.
        """
        assert self.groups.more is not None, "asked by the caller"
        for number in range(self.groups.more.rounds):
            scores, *_ = self._gather(*drawn)
            names = [key.draw for key, _ in draws]
            sizes = further_members(scores, names, self.group_size, self.groups.more, number)
            asked = [
                Asked(replace(key, round=1 + number), prompt, size, key)
                for (key, prompt), size in self.engine.share(list(zip(draws, sizes, strict=True)))
                if size
            ]
            with self.policy.weights(weights), self.engine.together():
                rollout, judgement, _ = self._draw(asked, iteration)
            if drawn[0] is not None and drawn[1] is not None and rollout is not None and judgement is not None:
                drawn = Rollout.join([drawn[0], rollout]), Judgement.join([drawn[1], judgement])
        return drawn

    def _draw(self, draws: Sequence[Asked], iteration: int) -> tuple[Rollout | None, Judgement | None, dict[int, str]]:
        """This process's groups, in chunks; each chunk is scored while the next is sampled.

        And why prompts could not be read, by their draws: they have no group.
        """
        chunks = [draws[start : start + self.chunk] for start in range(0, len(draws), self.chunk)]
        rollouts, judgements, unread = [], [], dict[int, str]()
        with ScoringQueue(self.scorer) as queue:
            for number in range(self.engine.most(len(chunks))):
                rollout, more = self._sample(chunks[number]) if number < len(chunks) else (None, {})
                unread |= more
                if rollout is None:
                    if self.engine.is_sharded:
                        idle_rollout(self.policy, self.sampler, self.group_size)
                    continue
                rollouts.append(rollout)
                if self.overlap and len(chunks) > 1:
                    queue.submit(rollouts[-1], iteration)
                else:
                    judgements.append(self.scorer.judge(rollouts[-1], iteration))
            if not rollouts:
                return None, None, unread
            return Rollout.join(rollouts), Judgement.join(judgements) if judgements else queue.join(), unread

    def _sample(self, chunk: Sequence[Asked]) -> tuple[Rollout | None, dict[int, str]]:
        """The groups of some draws; where a prompt cannot be read, the others' groups, and why not."""
        try:
            return self._rollout(chunk), {}
        except ConfigError:
            reader = reader_of(self.policy)
            whys = {one.key.draw: reader.unreadable(one.prompt) for one in chunk} if reader is not None else {}
            unread = {draw: why for draw, why in whys.items() if why is not None}
            if not unread:
                raise
        rest = [one for one in chunk if one.key.draw not in unread]
        return self._rollout(rest) if rest else None, unread

    def _rollout(self, chunk: Sequence[Asked]) -> Rollout:
        try:
            plans = [self.sampler.plan(self.policy, one.planned_by, one.size) for one in chunk]
        except ValueError as error:  # what a sampler draws anew for each group may leave it nothing to train
            raise ConfigError(f"the sampler cannot draw this group: {error}") from error
        return roll_out(self.policy, [one.prompt for one in chunk], plans, [one.key for one in chunk])

    def _check_unread(self, unread: Mapping[int, str]) -> None:
        """Counts prompts that no process could read; raises ConfigError when they are too many of all there are.

        Not of those of an iteration, which may be four: of all draws so far, the pass at hand counted as a whole.
        """
        for why in unread.values() if self.engine.is_main else ():
            log.warning("left out: %s", why)
        self.prompts.num_unread += len(unread)
        size, allowed = self.prompts.num_prompts, self.scorer.max_failed_share
        total = size * -(-self.prompts.drawn // size)
        if self.prompts.num_unread > allowed * total:
            first = next(iter(unread.values()), "none in this iteration")
            raise ConfigError(
                f"{self.prompts.num_unread} of {total} prompts could not be read, scoring.max_failed_share allows "
                f"{allowed:.0%}; first failure: {first}"
            )

    def _gather(
        self, rollout: Rollout | None, judgement: Judgement | None
    ) -> tuple[Scores, Tensor, Paths | None, list[float]]:
        """Scores of all processes in draw order, where this process's samples stand in them, the paths of all, and the
        seconds that each reward took, the mean over processes."""
        own = [] if rollout is None or judgement is None else [(judgement, _paths(rollout))]
        count = 0 if rollout is None else rollout.num_samples
        gathered = self.engine.gather(own)
        first = self.engine.count_before(count)
        everyone = Judgement.join([judgement for judgement, _ in gathered] or [self.scorer.empty()])
        self.scorer.check(everyone.scores, everyone.first_failures)
        order = everyone.scores.draw.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        paths = _joined([paths for _, paths in gathered])
        seconds = [spent / self.engine.num_processes for spent in everyone.seconds]
        paths = paths[order] if paths is not None else None
        return everyone.scores.select(order), place[first : first + count], paths, seconds

    def _worth_keeping(self, scores: Scores, paths: Paths | None, draws: Sequence[Draw]) -> list[int]:
        everyone = [key.draw for key, _ in draws]
        if self.groups.degenerate == "keep":
            return everyone
        dull = degenerate_groups(scores, self.advantage, paths, self.groups.min_spread)
        if self.groups.mean_between is not None:
            dull |= groups_outside(scores, *self.groups.mean_between)
        return [draw for draw in everyone if not dull[scores.draw == draw].all()]

    def _failed(self, scores: Scores, draws: Sequence[Draw], kept: Sequence[int]) -> list[Prompt]:
        """Prompts that have a hint, none of whose samples had a total above that of a failure."""
        if self.groups.hint is None:
            return []
        is_good = scores.valid & (plain_total(scores) > self.groups.hint_above)
        good = set(scores.draw[is_good].tolist()) | set(kept)
        return [prompt for key, prompt in draws if key.draw not in good and self.groups.hint in prompt.target]


def with_hint(prompt: Prompt, name: str | None) -> Prompt:
    """The prompt with the hint `name` of its target in a line behind its text; it has that hint no more."""
    target = {key: value for key, value in prompt.target.items() if key != name}
    return replace(prompt, text=f"{prompt.text}\n{prompt.target[str(name)]}", target=target)


def _paths(rollout: Rollout) -> Paths | None:
    return rollout.blocks[0].paths if rollout.blocks else None


def _joined(parts: Sequence[Paths | None]) -> Paths | None:
    present = [paths for paths in parts if paths is not None]
    return Paths.join(present) if present else None


def _means(watched: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Mean over all samples of each thing that is watched."""
    names = dict.fromkeys(name for part in watched for name in part)
    together = {name: torch.cat([part[name] for part in watched]) for name in names}
    return {name: float(values.mean()) for name, values in together.items() if len(values)}


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Sums over all processes of what policies count, by the names of their metrics."""
    names = dict.fromkeys(name for part in counts for name in part)
    return {name: float(sum(part.get(name, 0) for part in counts)) for name in names}


def _join(
    rounds: Sequence[tuple[Rollout | None, Scores, Tensor, Paths | None]], kept: list[int], metrics: dict[str, float]
) -> Collected:
    """The rounds as one: later rounds hold later draws, so their order is already that of the draws."""
    rollouts = [rollout for rollout, *_ in rounds if rollout is not None]
    sizes = [len(scores.group) for _, scores, *_ in rounds]
    return Collected(
        rollout=Rollout.join(rollouts) if rollouts else None,
        scores=Scores.join([scores for _, scores, *_ in rounds]),
        mine=torch.cat([mine + sum(sizes[:n]) for n, (_, _, mine, _) in enumerate(rounds)]),
        kept=kept,
        paths=_joined([paths for *_, paths in rounds]),
        num_calls=sum(rollout.num_calls for rollout in rollouts),
        metrics=metrics,
    )
