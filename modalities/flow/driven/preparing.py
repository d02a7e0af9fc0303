"""How a pipeline is made ready to be driven: what it does is found by trying, and what cannot be driven is refused."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.keys import normal

from ...encoding.encoded_files import EncodedFiles
from ...loading.adapted_layers import freeze_unused
from ...loading.hub import autocast
from .arguments import Arguments, arguments_of, find_off
from .driver import Driver, Key
from .paused_call import NotDriven
from .pipeline import DrivenPipeline
from .probing import Tolerance, captured, learn
from .quiet import without_warnings
from .registry import Registry
from .remembered import Remembered
from .replaying import Replays
from .scales import scale_of
from .settings import Settings
from .solver import flow_scheduler

_log = logging.getLogger(__name__)
_SCALE = 3.0  # of guidance, where it is tried
_LEVELS = (0.98, 0.02)  # near both ends, where pipelines with two networks call one of them each
_TOLERANCE = {torch.float32: Tolerance(1e-3)}  # of probes
_REPLAYED = {torch.float32: Tolerance(1e-4)}  # of arguments that are used again, against paused calls
_ROUGH = Tolerance(5e-2, by_norm=True)  # both in half precision


def unprobed(
    pipeline: Any,
    settings: Settings,
    placement: Placement,
    networks: tuple[str, ...],
    *,
    on_device: Callable[[], AbstractContextManager[None]],
    files: EncodedFiles | None,
    maximum: Callable[[int], int],
) -> DrivenPipeline:
    """Returns a driven pipeline of which only the settings are known; takes the place of its scheduler.

    Args:
        networks: names of the parts that predict. on_device: a method; the text encoders are where they can run in it.
        files: of encoded prompts. maximum: over processes.
    Raises:
        ConfigError: the scheduler is not that of a flow, or the call takes other arguments.
    """
    shipped = pipeline.scheduler
    pipeline.scheduler = flow_scheduler(shipped, f"{settings.where}.model")
    return DrivenPipeline(
        pipeline=pipeline,
        settings=settings,
        placement=placement,
        networks=networks,
        maximum=maximum,
        arguments=arguments_of(settings, pipeline),
        scale=scale_of(pipeline.scheduler),
        registry=Registry(settings.prompt_cache),
        remembered=Remembered(
            *(
                settings.prompt_cache,
                int(1e9 * settings.prompt_cache_gb),
                WeakMethod(on_device),
                placement.device,
                files,
            )
        ),
        has_other_steps=pipeline.scheduler is not shipped,
    )


def probe(driven: DrivenPipeline, networks: Iterable[nn.Module]) -> None:
    """Finds out how the pipeline can be driven, and freezes weights of its networks that can get no gradient.

    Raises ConfigError for a pipeline that cannot be driven.
    """
    _find_out(driven)
    driven.levels.learn_timesteps()
    if not driven.placement.is_frozen:
        _freeze_what_is_not_reached(driven, networks)
    _choose_replay(driven)


def at_size(driven: DrivenPipeline, settings: Settings) -> DrivenPipeline:
    """Returns the same pipeline at another size, where samples are served as before. Raises ConfigError as `probe`."""
    fixed = arguments_of(settings, driven.pipeline).fixed
    made = replace(driven, settings=settings, arguments=replace(driven.arguments, fixed=fixed))
    try:
        with without_warnings():
            _find_out_again(made, driven.driver)
            made.levels.learn_timesteps()
            _choose_replay(made)
    except BaseException:
        made.close()
        raise
    return made


def probed_scales(driven: DrivenPipeline) -> list[float]:
    """Returns the guidance scales that are tried, in the sense of plans (1: off)."""
    return [1.0] if driven.refusal_of_guidance is not None else [1.0, _SCALE]


def _find_out(driven: DrivenPipeline) -> None:
    tolerance, probes = _TOLERANCE.get(driven.placement.dtype, _ROUGH), driven.probes()

    def form(arguments: Arguments) -> Any:
        driven.arguments = arguments
        calls, _ = captured(driven.driver, Key(probes[0], None, 1))
        return [(call.network, call.names, _shapes((call.args, call.kwargs))) for call, _ in calls]

    with driven.driving():
        with torch.no_grad():
            driven.arguments = find_off(driven.arguments, form)
        _learn(driven, probes, tolerance)
    _check_size(driven)
    if driven.arguments.guidance is None:
        driven.refusal_of_guidance = "its guidance scale is set in arguments"
        return
    try:
        with autocast(driven.placement):
            learn(driven.driver, probes, _SCALE, tolerance)
    except NotDriven as error:
        driven.refusal_of_guidance = str(error)


def _find_out_again(driven: DrivenPipeline, first: Driver) -> None:
    """Finds what depends on the size of samples; `first`: the driver at another size."""
    tolerance, probes = _TOLERANCE.get(driven.placement.dtype, _ROUGH), driven.probes()
    driven.driver.decodes_many = first.decodes_many
    with driven.driving():
        learn(driven.driver, probes, None, tolerance, first.learned[False])
        if driven.refusal_of_guidance is None:
            learn(driven.driver, probes, _SCALE, tolerance, first.learned[True])
    _check_size(driven, is_one_of_several=True)


def _learn(driven: DrivenPipeline, probes: Sequence[int], tolerance: Tolerance) -> None:
    """Learns how several samples are served; some pipelines take lists of prompts, not numbers of samples."""
    try:
        learn(driven.driver, probes, None, tolerance)
    except NotDriven as first:
        driven.close()
        driven.arguments = replace(driven.arguments, copies_by_list=True)
        try:
            learn(driven.driver, probes, None, tolerance)
        except NotDriven as error:
            _log.debug("with a list of prompts: %s", error)
            raise first from error


def _check_size(driven: DrivenPipeline, *, is_one_of_several: bool = False) -> None:
    """Raises ConfigError where the pipeline makes other sizes than the settings say: it rounds them in silence.

    One of several sizes must be made as it is also where the pipeline's call takes no sizes.
    """
    settings, made = driven.settings, driven.driver.media_shape
    given, where, kind = dict(driven.arguments.fixed), settings.where, settings.output
    if is_one_of_several:
        given |= {"height": settings.height, "width": settings.width}
    if len(made) != (4 if kind == "video" else 3):
        raise ConfigError(f"{where}.output: {settings.model!r} makes outputs of shape {list(made)}, no {kind}s")
    sizes = {"height": made[-2], "width": made[-1]} | ({"num_frames": made[0]} if kind == "video" else {})
    for name, size in sizes.items():
        if name in given and int(given[name]) != size:
            raise ConfigError(
                f"{where}.{name}: {settings.model!r} makes {kind}s of {name} {size} where {given[name]} is set; "
                f"set {size}, or another number that it does not round (arguments such as max_area set sizes, too)"
            )


def _freeze_what_is_not_reached(driven: DrivenPipeline, networks: Iterable[nn.Module]) -> None:
    """Freezes parameters that can never get a gradient: such as those for a text output that nobody reads."""
    probes = driven.probes()

    def output(sigma: float, scale: float) -> Tensor:
        state = normal(0, (1, *driven.driver.latent_shape)).to(driven.placement.device)
        return driven.guided_by(state, torch.tensor([sigma]), probes[:1], scale)

    with driven.driving():
        for network in networks:
            runs = [partial(output, sigma, scale) for sigma in _LEVELS for scale in probed_scales(driven)]
            if unused := freeze_unused(network, runs):
                _log.debug("%d tensors reach no output and are not trained: %s", len(unused), ", ".join(unused))
    driven.close()  # paused calls hold graphs


def _choose_replay(driven: DrivenPipeline) -> None:
    """Finds out whether network arguments can be used again. Raises ConfigError where they must be."""
    settings, placement = driven.settings, driven.placement
    if settings.replay is False:
        return
    if placement.maximum is not None:  # found out at different times by processes that wait for each other
        if settings.replay is True:
            raise ConfigError(f"{settings.where}.replay: not with weights that are sharded over processes")
        return
    tolerance = _REPLAYED.get(placement.dtype, _ROUGH)
    driven.replays = Replays(driven.driver, driven.probes(), tolerance, settings.paused_calls)
    with driven.driving():
        for scale in probed_scales(driven):
            driven.check_replay(scale)
            _log.info("replay, %s", driven.replay_at(scale))


def _shapes(value: Any) -> Any:
    """Returns the sizes of the tensors in nested arguments."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, Mapping):
        return tuple(_shapes(item) for item in value.values())
    return tuple(_shapes(item) for item in value) if isinstance(value, list | tuple) else None
