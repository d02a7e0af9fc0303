"""Rewards without a run: scores of existing outputs, for Python, the command line and other trainers."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from mmrl.core.config import ScoringSettings
from mmrl.core.contracts import ConfigError, Placement, Twinned
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.reward_batches import check_prompts, refuse_dense, refuse_thought
from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.scoring.scorer import Judgement, RewardTerm, Scorer, build_scorer

log = logging.getLogger(__name__)


def scorer_of(
    rewards: Sequence[str | Mapping[str, Any]],
    *,
    mix: Mapping[str, Any] | None = None,
    device: str = "cpu",
    twins: Path | None = None,
) -> Scorer:
    """Builds rewards by name, or by sections as in a config (`{name: box_iou, kind: giou, weight: 0.5}`), ready to
    judge; with `twins`, a folder, their random small twins, which are written there.

    Raises ConfigError for an unknown name or setting, a dense reward, and weights that cannot be loaded.
    """
    if wrong := [reward for reward in rewards if not isinstance(reward, str | Mapping)]:
        raise ConfigError(f"rewards are names or sections such as {{name: box_iou}}, got {wrong[0]!r}")
    if not isinstance(mix, Mapping | None):
        raise ConfigError(f"a mix is a section such as {{name: gdpo}}, got {mix!r}")
    sections = [{"name": reward} if isinstance(reward, str) else dict(reward) for reward in rewards]
    scorer = build_scorer(sections, ScoringSettings(max_failed_share=1.0), None if mix is None else dict(mix))
    for term in scorer.terms:
        refuse_dense(term.name, term.reward)
        refuse_thought(term.name, term.reward, "a score of outputs alone")
    if twins is not None:
        scorer = replace(scorer, terms=tuple(_with_twin(term, twins / str(n)) for n, term in enumerate(scorer.terms)))
    needs_models = any("model" in term.reward.needs for term in scorer.terms)
    with _quiet() if needs_models else nullcontext():  # what is not needed is not imported
        scorer.prepare(Placement(_device(device), torch.float32))
    return scorer


def _with_twin(term: RewardTerm, folder: Path) -> RewardTerm:
    return replace(term, reward=term.reward.tiny(0, folder)) if isinstance(term.reward, Twinned) else term


def _device(name: str) -> torch.device:
    """Returns the device of a name. Raises ConfigError for one that is unknown, or not there."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without it
        raise ConfigError(f"device must be one that is here, such as cpu or cuda, got {name!r}: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the progress bars of transformers while models are loaded, and restores them as they were."""
    from transformers.utils import logging as transformers_logging

    has_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if has_bars:
            transformers_logging.enable_progress_bar()


def judge(
    scorer: Scorer,
    prompts: Sequence[Prompt],
    outputs: Outputs,
    *,
    group: Sequence[int] | None = None,
    iteration: int = 0,
    seed: int = 0,
) -> Judgement:
    """Returns the judgement of B outputs, NaN where a reward could not judge.

    Args:
        prompts: B, the prompt of each output.
        group: B numbers, equal for outputs that are compared; None: those with equal prompts are a group.
        iteration: whose schedules of weights hold. seed: of rewards with noise.
    Raises:
        ConfigError: prompts or outputs lack what a reward needs, or the reward cannot judge by a target.
    """
    prompts = _with_plain_targets(prompts)
    for term in scorer.terms:
        check_prompts(term.name, term.reward, prompts)
    numbers = list(groups_of(prompts) if group is None else group)
    if len(numbers) != len(prompts):
        raise ConfigError(f"needs a group for each of {len(prompts)} outputs, got {len(numbers)}")
    index = torch.arange(len(prompts))
    return scorer.judge(
        Rollout(
            prompts=tuple(prompts),
            keys=tuple(GroupKey(seed, iteration, number) for number in numbers),
            prompt=index,
            group=torch.tensor(numbers, dtype=torch.int64),
            episode=index,
            turn=torch.zeros_like(index),
            outputs=outputs,
            blocks=(),
            trace=None,
            num_calls=0,
        ),
        iteration,
    )


def _with_plain_targets(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Returns the prompts without arrays in their targets; equal prompt objects stay one object."""
    known = {id(prompt): replace(prompt, target=without_arrays(prompt.target)) for prompt in prompts}
    return [known[id(prompt)] for prompt in prompts]


def without_arrays(value: Any) -> Any:
    """Returns a value with arrays and numbers of numpy, torch and Arrow as lists and numbers of Python."""
    if isinstance(value, Mapping):
        return {key: without_arrays(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_arrays(inner) for inner in value]
    name = next((name for name in ("tolist", "as_py") if hasattr(value, name)), None)
    return value if name is None else without_arrays(getattr(value, name)())


def groups_of(prompts: Sequence[Prompt]) -> list[int]:
    """Returns [B]: for each prompt the number of the first prompt with the same words and media."""
    first: dict[Any, int] = {}
    return [first.setdefault((one.text, one.system, one.media, one.clips), row) for row, one in enumerate(prompts)]


def score(
    reward: str | Mapping[str, Any],
    prompts: Sequence[str | Prompt],
    *,
    targets: Sequence[Mapping[str, Any]] | None = None,
    texts: Sequence[str] | None = None,
    images: Tensor | None = None,
    videos: Tensor | None = None,
    coordinates: Convention = "original",
    device: str = "cpu",
) -> Tensor:
    """Scores outputs, such as answers, with one reward: `score("anls", ["Who?"], texts=["Ada"], targets=[...])`.

    Args:
        reward: a name, or a section as in a config. prompts: B texts, or prompts with images and targets of their own.
        targets: B, what is right; only with prompts that are texts. texts: B answers.
        images: [B, 3, H, W] in [0, 1], RGB. videos: [B, F, 3, H, W] in [0, 1], RGB.
        coordinates: the unit of points and boxes in the answers (`mmrl.parsing.coordinates.Canvas`).
    Returns:
        [B] float32, higher is better; NaN where the reward could not judge, which is logged.
    Raises:
        ConfigError: an unknown reward or setting, or an argument that is missing or has another form.
    """
    if coordinates not in get_args(Convention):
        raise ConfigError(f"coordinates must be one of {', '.join(get_args(Convention))}, got {coordinates!r}")
    _check_texts("prompts", prompts, (str, Prompt))
    for name, value in (("targets", targets), ("texts", texts), ("images", images), ("videos", videos)):
        if value is not None and len(value) != len(prompts):
            raise ConfigError(f"needs as many {name} as prompts, got {len(value)} for {len(prompts)}")
    _check_texts("texts", texts or (), (str,))
    _check_pixels("images", images, ("B", 3, "H", "W"))
    _check_pixels("videos", videos, ("B", "F", 3, "H", "W"))
    questions, outputs = _as_prompts(prompts, targets), Outputs(images=images, videos=videos)
    if texts is not None:
        outputs = answered(questions, texts, coordinates=coordinates, outputs=outputs)
    judgement = judge(scorer_of([reward], device=device), questions, outputs)
    values = judgement.scores.values[:, 0]
    if failure := judgement.first_failures[0]:
        log.warning("%d of %d outputs could not be judged: %s", values.isnan().sum(), len(questions), failure)
    return values


def _as_prompts(prompts: Sequence[str | Prompt], targets: Sequence[Mapping[str, Any]] | None) -> list[Prompt]:
    """Returns the prompts with their targets. Raises ConfigError for targets that are no mappings, or not as many."""
    if targets is not None and any(isinstance(prompt, Prompt) for prompt in prompts):
        raise ConfigError("targets go with prompts that are texts; a Prompt has its own target")
    if wrong := [one for one in targets or () if not isinstance(one, Mapping)]:
        raise ConfigError(f"targets must be a list of mappings such as {{'answer': '4'}}, got {wrong[0]!r:.80}")
    pairs = zip(prompts, targets or [{}] * len(prompts), strict=True)
    return [one if isinstance(one, Prompt) else Prompt(one, target=target) for one, target in pairs]


def _check_texts(name: str, value: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """Raises ConfigError for a value that is no list of texts."""
    wanted_type = " or ".join(kind.__name__ for kind in kinds)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of {wanted_type}, got {value!r:.80}")
    if wrong := [one for one in value if not isinstance(one, kinds)]:
        raise ConfigError(f"{name} must be a list of {wanted_type}, got {wrong[0]!r:.80} in it")


def _check_pixels(name: str, value: Tensor | None, shape: tuple[int | str, ...]) -> None:
    """Raises ConfigError for pixels in another shape, type or range, which rewards would judge as other pictures.

    NaN is allowed: a reward cannot judge these samples.
    """
    if value is None:
        return
    wanted_type = f"{name} must be a tensor [{', '.join(map(str, shape))}] of real numbers in [0, 1], RGB"
    if not isinstance(value, Tensor):
        raise ConfigError(f"{wanted_type}, got {type(value).__name__}")
    fits = len(shape) == value.ndim and all(
        size == wanted if isinstance(wanted, int) else size > 0 or wanted == "B"
        for size, wanted in zip(value.shape, shape, strict=True)
    )
    if not fits or not value.is_floating_point():
        raise ConfigError(f"{wanted_type}, got {value.dtype} {list(value.shape)}")
    if ((value < 0) | (value > 1)).any():
        raise ConfigError(f"{wanted_type}, got numbers from {float(value.min()):g} to {float(value.max()):g}")


def answered(
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    *,
    coordinates: Convention = "original",
    dialect: DialectName | None = None,
    canvases: Sequence[Canvas | None] = (),
    outputs: Outputs | None = None,
) -> Outputs:
    """Returns texts as outputs, with the canvas of each prompt's first image, and with actions where a dialect is
    named.

    Args:
        coordinates: the unit in which the texts give points and boxes; `resized` is that of the original here, since no
            processor has made the images smaller.
        dialect: of `mmrl.parsing.actions.dialects.DIALECTS`; None: the texts are no actions.
        canvases: the known canvases, one for each prompt; None stands for that of the prompt. Empty: none is known.
    """
    own = canvases or [None] * len(prompts)
    canvases = tuple(one or _canvas(prompt, coordinates) for one, prompt in zip(own, prompts, strict=True))
    actions = None if dialect is None else tuple(map(_action, texts, canvases, [dialect] * len(texts)))
    return replace(outputs or Outputs(), texts=tuple(texts), canvases=canvases, actions=actions)


def _canvas(prompt: Prompt, convention: Convention) -> Canvas | None:
    if not prompt.media:
        return None
    size = prompt.media[0].size
    return Canvas(size, size, convention)


def _action(text: str, canvas: Canvas | None, dialect: DialectName) -> Action | None:
    try:
        return None if canvas is None else DIALECTS[dialect].parse(text, canvas)
    except ParseError:
        return None
