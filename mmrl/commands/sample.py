"""`mmrl sample`: pictures, videos or answers by the weights of a run."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from mmrl.commands.train import config_of, refuse_full, refuse_others, restored
from mmrl.core import plugins
from mmrl.core.contracts import ConfigError, Reader, Sampler
from mmrl.core.data import Prompt, WeightsName
from mmrl.core.keys import GroupKey
from mmrl.media.pictures import StoredPicture
from mmrl.media.video import StoredClip
from mmrl.plans.sizes import policy_for
from mmrl.prompts.filtering import warn_cut
from mmrl.system import spelling
from mmrl.system.files import whole_folder
from mmrl.system.progress_bars import Counter
from mmrl.training.held_out import sampled_share, save_samples, saved_sample, uncounted
from mmrl.training.trainer import Trainer


def sample(
    source: str,
    prompts: list[str],
    count: int,
    seed: int,
    out: Path,
    which: WeightsName | None = None,
    at: Literal["last", "best"] = "last",
    *,
    images: Sequence[Path] = (),
    videos: Sequence[Path] = (),
    by: str | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Samples `count` outputs per prompt with the evaluation's sampler into the folder `out`; returns the folder.

    Args:
        by: another sampler, `train` or one of `evaluation.also`. images, videos: media of the prompt, of which there is
            then one.
        overrides: as `evaluate` takes them, such as another `evaluation.sampler`.
    Raises:
        ConfigError: a setting is wrong, or a file is missing, of another kind, or cannot be read.
    """
    refuse_full(out)
    refuse_others(source, overrides)
    _refuse_media(source, prompts, {"--image": images, "--video": videos})
    media, clips = _pictures(images), _clips(videos)
    with restored(source, which, at, overrides, is_whole=True) as (trainer, weights):
        sampler = sampler_of(trainer, by)
        keys = [GroupKey(seed, 0, number) for number in range(len(prompts))]
        known = {} if media or clips else _known(trainer)  # a target of one image does not hold for another
        questions = [_question(trainer, text, known) or Prompt(text, media, clips=clips) for text in prompts]
        _refuse_unconditioned(trainer, questions)
        plans = [
            sampler.plan(policy_for(trainer.policy, question), key, count)
            for question, key in zip(questions, keys, strict=True)
        ]
        if trainer.processes.is_main:
            warn_cut(trainer.policy, questions, None)
        before = trainer.policy.num_calls
        counting = Counter.on_stderr if trainer.processes.is_main else uncounted
        with trainer.policy.weights(weights), counting("sampling", len(questions)) as counter:
            counter.begin(partial(sampled_share, trainer.policy, plans, before))
            rollout = trainer.policy.rollout(questions, plans, keys)
    samples = [saved_sample(rollout, row, {}) for row in range(rollout.num_samples) if rollout.turn[row] == 0]
    with whole_folder(out) as unfinished:
        save_samples(samples, unfinished)
    return out


def _known(trainer: Trainer) -> dict[str, Prompt]:
    """Returns the run's own prompts by their texts: a sampler that steers may need their targets."""
    held_out = () if trainer.evaluator is None else trainer.evaluator.prompts
    known = [*(prompt for prompts in trainer.collector.prompts.sets for prompt in prompts), *held_out]
    return {prompt.text: prompt for prompt in known}


def _question(trainer: Trainer, text: str, known: Mapping[str, Prompt]) -> Prompt | None:
    """Returns the run's own prompt of a text, with its condition images where images are made; None: there is none."""
    own = known.get(text)
    if own is None:
        return None
    is_made_from = trainer.policy.sample_kind == "latents"
    return Prompt(text, own.media if is_made_from else (), own.target, roles=own.roles if is_made_from else ())


def _refuse_unconditioned(trainer: Trainer, questions: Sequence[Prompt]) -> None:
    """Raises ConfigError for a prompt without the condition images that the policy makes its images from."""
    policy = trainer.policy
    if policy.sample_kind != "latents" or not isinstance(policy, Reader):
        return
    for question in questions:
        if (why := policy.refusal(question)) is not None:
            raise ConfigError(f"--prompt {question.text!r} cannot be sampled: {why}; --image gives its images")


def sampler_of(trainer: Trainer, name: str | None) -> Sampler:
    """Returns the sampler of a name; without a name the evaluation's, or the training's where there is none."""
    known: dict[str, Sampler] = {"train": trainer.collector.sampler}
    if trainer.evaluator is not None:
        known = {"evaluation": trainer.evaluator.sampler, **known}
    known |= {other: evaluator.sampler for other, evaluator in trainer.also_evaluated.items()}
    if name is not None and name not in known:
        raise ConfigError(f"--sampler: there is no sampler {name!r}{spelling.did_you_mean(name, known)}")
    return next(iter(known.values())) if name is None else known[name]


def _refuse_media(source: str, prompts: list[str], files: Mapping[str, Sequence[Path]]) -> None:
    """Raises ConfigError for files, by their option, that are missing or that no prompt can have."""
    for option, paths in files.items():
        if not paths:
            continue
        if len(prompts) != 1:
            raise ConfigError(f"{option} belongs to one prompt: give one --prompt, got {len(prompts)}")
        settings = config_of(source).modality
        policy = plugins.build("modalities", settings)
        is_conditioned = isinstance(policy, Reader) and option == "--image"
        if policy.sample_kind == "latents" and not is_conditioned:
            name, kind = settings["name"], option.removeprefix("--")
            raise ConfigError(f"modality {name!r} makes images and takes no {kind}; leave {option} out")
        if missing := [str(path) for path in paths if not path.is_file()]:
            raise ConfigError(f"{option}: there is no file {missing[0]!r}")


def _pictures(paths: Sequence[Path]) -> tuple[StoredPicture, ...]:
    """Returns images of the command line, read once before any weight is loaded."""
    pictures = tuple(StoredPicture(str(path), path=path) for path in paths)
    for picture in pictures:
        picture.load()
    return pictures


def _clips(paths: Sequence[Path]) -> tuple[StoredClip, ...]:
    """Returns videos of the command line, their headers read before any weight is loaded."""
    clips = tuple(StoredClip(str(path), path=path) for path in paths)
    for clip in clips:
        clip.header()
    return clips
