"""How far a real vLLM and the trainer differ, before and after weights are sent, with a control that is not sent."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mmrl.core.config import CorrectionSettings
from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.modalities.language.probes import CLIPS, IMAGES, TWO_IMAGES
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.video import Video
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from mmrl.training.off_policy_correction import mismatch, mismatch_metrics

from . import models
from .environment import client, serving

ANSWERS, TOKENS = 16, 16  # to each prompt, at most
PROMPTS = {"images": (Prompt("what is red?"), *IMAGES, TWO_IMAGES), "videos": CLIPS}
_SHOWN = {"difference": "mean", "difference_max": "largest", "kl_k3": "k3", "effective": "effective"}
_NO_CUT = CorrectionSettings(kind="none")


def rows(folder: Path, families: Sequence[str], media: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Gives a line for each family, kind of trained weights, precision of the server and kind of prompts.

    Args:
        folder: of vLLM's environment.
    """
    for family in families:
        with TemporaryDirectory() as parent:
            model = Path(parent) / family
            models.write(family, model)
            for dtype, rank in (("float32", None), ("float32", 16), ("bfloat16", None)):
                with serving(folder, model, dtype=dtype, lora_rank=rank) as url:
                    for kind in media:
                        case = {"family": family, "prompts": kind, "trained": "LoRA" if rank else "all weights"}
                        yield case | {"server": dtype} | _stages(model, url, rank, kind)


def _stages(model: Path, url: str, rank: int | None, kind: str) -> dict[str, Any]:
    lora = None if rank is None else Lora(rank=rank, alpha=2 * rank)
    vision = "frozen" if lora is not None and kind == "videos" else "trained"  # vLLM 0.32 adapts no tower for videos
    settings: dict[str, Any] = {"model": str(model), "vision": vision, "lora": lora, "engine": client(url)}
    policy = Video(fps=2.0, **settings) if kind == "videos" else VisionLanguage(**settings)
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    prompts, before = PROMPTS[kind], {n: t.detach().clone() for n, t in policy.weights.parameters.items()}

    def sampled() -> Rollout:
        keys = [GroupKey(0, 0, number) for number in range(len(prompts))]
        return policy.rollout(prompts, [AnswerPlan(ANSWERS, TOKENS)] * len(keys), keys)

    found = {"as loaded": _difference(policy, rollout := sampled())}
    _move(policy)
    found["moved, not sent"] = _difference(policy, rollout)
    found["moved, sent"] = _difference(policy, sampled())
    with torch.no_grad():
        for name, tensor in policy.weights.parameters.items():
            tensor.copy_(before[name])
    found["moved back, sent"] = _difference(policy, sampled())
    return found


@torch.no_grad()
def _move(policy: VisionLanguage) -> None:
    """Adds noise to all trained weights, a fifth of their spread; to those that are 0, a hundredth."""
    for number, tensor in enumerate(policy.weights.parameters.values()):
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number))
        spread = tensor.std() if tensor.any() and tensor.numel() > 1 else torch.tensor(0.05)
        tensor.add_(0.2 * spread * noise)


def _difference(policy: VisionLanguage, rollout: Rollout) -> dict[str, float]:
    """Returns how the policy's log-probs of sampled tokens differ from those that the server gave them."""
    length = rollout.trace.completions.length
    view = DecisionView(torch.arange(int(length.max())))
    ratio = policy.recorded(policy.recompute(rollout, 512), view).log_ratio(policy.recorded(rollout, view))
    is_token = torch.arange(ratio.shape[1]) < length[:, None]
    metrics = mismatch_metrics(*mismatch(ratio, is_token, _NO_CUT))
    shown = {name: float(f"{metrics[f'engine/{metric}']:.3g}") for metric, name in _SHOWN.items()}
    return shown | {"tokens": int(length.sum())}
