"""One reward asked several times: its mean, with less weight where the calls disagree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator, normal, seed_from

from ..base.disagreement import Kind, reduced, reduced_range
from ..base.wrapper import RewardWrapper, is_changing


@dataclass(frozen=True)
class Repeated(RewardWrapper):
    """The mean m of `times` calls of one reward, reduced by their disagreement u, the population std over the calls.

    Zhang et al. 2025, "Ctrl-U", arXiv 2410.11236, equation 5: a reward counts e^(-U), with U = |r_1 - r_2| the
    disagreement of one judge about two images for the same condition. Of two calls u = U / 2, so the defaults (`times`
    2, `scale` 2, kind `discount`) are m e^(-|r_1 - r_2|). All kinds are those of `uncertainty_weighted`: their loss
    L e^(-U) + 0.1 U is kind `weighted_loss` with `own_weight` 0.2, 0.1 being `u_scale` of their train/ctrlu_depth.sh.
    Theirs weights the first image's loss pixel by pixel; here m is the mean, and there is one number for each sample.

    Their two images are one noisy latent, denoised from two neighbouring noise levels. A reward sees only the finished
    image or video: `noise` adds Gaussian noise of this standard deviation to its values, which run from 0 to 1, and
    cuts off what leaves them. Without noise the reward itself must differ from call to call: by the seeds of samples,
    as `frame_mean` with `segments` or a `python` function with the parameter `seed`. Judges draw by seeds of their
    questions; their setting `votes` repeats them.

    Each call has its own seeds, derived from the sample's own: scores do not depend on the order or the size of the
    batch, and a resumed run repeats them.

    Raises ValueError for a reward without randomness where there is no noise, and for noise without images or videos.
    """

    reward: Reward  # the reward that is repeated
    times: Annotated[int, Field(ge=2)] = 2  # how often
    # standard deviation of the noise that each call adds to images and videos; 0: none
    noise: Annotated[float, Field(ge=0)] = 0.0
    kind: Kind = "discount"  # how disagreement counts
    scale: Annotated[float, Field(ge=0)] = 2.0  # how much disagreement counts
    # For kind `weighted_loss`: how much disagreement counts as a loss of its own.
    own_weight: Annotated[float, Field(ge=0)] = 0.0

    source: ClassVar[str] = "Zhang et al. 2025 (Ctrl-U), arXiv 2410.11236, equation 5"

    def __post_init__(self) -> None:
        super().__post_init__()
        media = self.reward.needs & {"images", "videos"}
        if self.noise and not media:
            raise ValueError(
                f"noise is for rewards of images or videos, got one that needs "
                f"{', '.join(sorted(self.reward.needs)) or 'nothing'}"
            )
        if not self.noise and not is_changing(self.reward):
            raise ValueError(
                "the inner reward judges a sample alike in every call: set `noise`"
                + ("" if media else ", for a reward of images or videos,")
                + " or take a reward that draws by the seeds of samples"
            )
        ranges = [self.reward.range] * self.times
        self.inherit(self.reward, range=reduced_range(ranges, self.kind, self.scale, self.own_weight))

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; each sample has seeds of its own."""
        return replace(super().declaration, is_changing=True)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        values = torch.stack([self.reward.score(self._call(batch, number)) for number in range(self.times)])  # [n, B]
        return reduced(values, self.kind, self.scale, top=self.reward.range[1], own_weight=self.own_weight)

    def _call(self, batch: RewardBatch, number: int) -> RewardBatch:
        """Returns the batch as call `number` sees it: with seeds of its own, and noise on images and videos."""
        seeds = tuple(seed_from(seed, "repeated", number) for seed in batch.seeds)
        outputs = _noisy(batch.outputs, seeds, self.noise) if self.noise else batch.outputs
        return replace(batch, seeds=seeds, generator=generator(*seeds), outputs=outputs)


def _noisy(outputs: Outputs, seeds: Sequence[int], std: float) -> Outputs:
    """Returns the outputs with noise on images and videos, that of each sample from its own seed."""
    if outputs.each is not None:
        pairs = zip(outputs.each, seeds, strict=True)
        return replace(outputs, each=tuple(_noisy(one, [seed], std) for one, seed in pairs))

    def disturbed(media: Tensor | None) -> Tensor | None:
        if media is None:
            return None
        noise = torch.stack([normal(seed, tuple(media.shape[1:])) for seed in seeds])
        return (media + std * noise.to(media)).clamp(0, 1)

    return replace(outputs, images=disturbed(outputs.images), videos=disturbed(outputs.videos))
