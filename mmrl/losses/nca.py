"""NCA: a judgement of each sample of a group by itself, which keeps good samples likely."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_sum

from .base.paths import present
from .infonca import Infonca


@dataclass(frozen=True)
class Nca(Infonca):
    """The term -sum over a group of softmax(reward / alpha) log sigmoid(h) + log sigmoid(-h) / n, h = beta * log-ratio.

    Chen et al. 2024, "Noise Contrastive Alignment of Language Models with Explicit Rewards", arXiv 2402.05369; labels
    and settings of InfoNCA. The loss reads log-ratios themselves and not their differences, so that those of good
    samples do not fall with those of bad ones. With alpha 0 and two samples this is TRL's nca_pair.

    Raises ValueError for settings out of range.
    """

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        implicit, members = self.beta * self.of_samples(compared[0], batch), present(batch)
        count = group_sum(members.to(implicit.dtype), batch.group).clamp(min=1)
        own = self.labels(batch) * logsigmoid(implicit) + members * logsigmoid(-implicit) / count
        return -group_sum(own, batch.group), {"implicit_reward": implicit}
