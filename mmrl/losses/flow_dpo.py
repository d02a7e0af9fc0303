"""Flow-DPO: Diffusion-DPO in velocities, with the same beta at every noise level."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.forward_outputs import Denoising

from .base.denoising import velocity_error
from .diffusion_dpo import DiffusionDpo


@dataclass(frozen=True)
class FlowDpo(DiffusionDpo):
    """Diffusion-DPO with the error of the velocity, l = mean (v - v*)^2.

    Liu et al. 2025, "Improving Video Generation with Human Feedback" (VideoAlign), arXiv 2501.13918, section 4: the
    noise error of a flow is (1 - sigma)^2 l, so Diffusion-DPO weighs a level by beta (1 - sigma)^2; a constant beta
    works better. The default beta is that of yifan123/flow_grpo.

    Raises ValueError for settings out of range.
    """

    # Times half the difference of errors; the error is a mean over the elements of a latent.
    beta: Annotated[float, Field(gt=0)] = 100.0

    def error(self, at: Denoising) -> Tensor:
        """Returns l [B, K]."""
        return velocity_error(at)
