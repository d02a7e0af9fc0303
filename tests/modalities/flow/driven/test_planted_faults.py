"""Pipelines that cannot be driven are refused by the name of their fault."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.modalities.flow.driven.proof import refuse_difference, stock_difference

pytestmark = pytest.mark.slow  # most of a second each: a model is loaded and probed


def with_network(change: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]) -> Callable[[Any], Any]:
    """Plants a change of the network's output."""

    def plant(pipeline: Any) -> Any:
        forward = pipeline.transformer.forward

        def changed(*args: Any, **kwargs: Any) -> Any:
            return (change(forward(*args, **kwargs)[0], kwargs),)

        pipeline.transformer.forward = changed
        return pipeline

    return plant


def with_call(plant: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Plants code at the beginning of the pipeline's call."""

    def changed(pipeline: Any) -> Any:
        made: Any = type(pipeline)
        call = made.__call__.__wrapped__

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            plant(self)
            return call(self, *args, **kwargs)

        __call__.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
        pipeline.__class__ = type(made.__name__, (made,), {"__call__": __call__})
        return pipeline

    return changed


def test_a_pipeline_that_draws_its_own_noise_is_refused(driven_sd3: Any) -> None:
    fault = with_network(lambda output, kwargs: output + torch.randn_like(output))
    with pytest.raises(ConfigError, match="draws noise of its own"):
        driven_sd3(fault)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 0.1), (torch.bfloat16, 0.1), (torch.bfloat16, 0.01)])
def test_guidance_that_depends_on_the_number_of_the_step_is_refused(
    dtype: torch.dtype, size: float, driven_sd3: Any
) -> None:
    def plant(pipeline: Any) -> None:
        # skip-layer guidance by the number of the step is SD3's own; here the network's input is scaled by it
        network, count = pipeline.transformer, iter(range(10**6))
        real = type(network).__call__

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["hidden_states"] = kwargs["hidden_states"] * (1 + size * next(count))
            return real(network, *args, **kwargs)

        pipeline.__dict__["transformer"] = _Calling(network, call)

    with pytest.raises(ConfigError, match="depend on the place in its loop"):
        driven_sd3(with_call(plant), dtype)


class _Calling:
    def __init__(self, real: Any, call: Any) -> None:
        self.__dict__.update(_real=real, _call=call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def test_a_network_that_mixes_the_samples_of_a_batch_is_refused(driven_sd3: Any) -> None:
    fault = with_network(lambda output, kwargs: output + output.mean(0, keepdim=True))
    with pytest.raises(ConfigError, match="not those one by one"):
        driven_sd3(fault)


def test_a_paused_call_that_is_silently_narrow_is_not_used_wide(driven_sd3: Any) -> None:
    def narrow(pipeline: Any) -> None:
        network, count = pipeline.transformer, pipeline.__dict__["asked"]

        def call(*args: Any, **kwargs: Any) -> Any:
            branches = 2 if pipeline.do_classifier_free_guidance else 1
            return (network(*args, **kwargs)[0][: count[-1] * branches],)

        pipeline.__dict__["transformer"] = _Calling(network, call)

    def planted(pipeline: Any) -> Any:
        pipeline.__dict__["asked"] = asked = [1]
        changed = with_call(narrow)(pipeline)
        prepare = type(changed).prepare_latents

        def prepare_latents(self: Any, batch_size: int, *args: Any, **kwargs: Any) -> Any:
            asked.append(batch_size)
            return prepare(self, batch_size, *args, **kwargs)

        type(changed).prepare_latents = prepare_latents
        return changed

    policy = driven_sd3(planted)
    assert policy.driven.driver.learned[False].mode == "copies"
    number, states = policy.driven.numbers([Prompt("a cat")])[0], torch.randn(3, *policy.latent_shape)
    sigma = torch.full((3,), 0.7)
    with torch.no_grad():
        whole = policy.driven.guided_by(states, sigma, [number] * 3, 1.0)
        alone = [policy.driven.guided_by(states[[n]], sigma[[n]], [number], 1.0) for n in range(3)]
    torch.testing.assert_close(whole, torch.cat(alone), atol=1e-5, rtol=0)


def test_padding_that_changes_outputs_is_not_used(driven_sd3: Any) -> None:
    def planted(output: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        num_tokens: int = kwargs["encoder_hidden_states"].shape[1]  # also of zeros at the end
        return output + 0.1 * num_tokens

    def ragged(pipeline: Any) -> Any:
        made: Any = type(pipeline)
        encode = made.encode_prompt

        def encode_prompt(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = encode(self, *args, **kwargs)
            length = 6 if "longer" in str(args) + str(kwargs) else 4
            return tuple(item[:, :length] if item is not None and item.dim() == 3 else item for item in found)

        pipeline.__class__ = type(made.__name__, (made,), {"encode_prompt": encode_prompt})
        return with_network(planted)(pipeline)

    policy = driven_sd3(ragged)
    learned = policy.driven.driver.learned[False]
    assert learned.pads == () and learned.mask is None
    numbers = policy.driven.numbers([Prompt("a dog"), Prompt("a longer text of a red dog")])
    states, sigma = torch.randn(2, *policy.latent_shape), torch.tensor([0.7, 0.7])
    with torch.no_grad():
        before = policy.driven.driver.num_network_calls
        whole = policy.driven.guided_by(states, sigma, numbers, 1.0)
        assert policy.driven.driver.num_network_calls == before + 2  # one call for each length
        alone = [policy.driven.guided_by(states[[n]], sigma[[n]], [numbers[n]], 1.0) for n in (0, 1)]
    torch.testing.assert_close(whole, torch.cat(alone), atol=1e-6, rtol=0)


def test_a_first_state_that_holds_parts_of_a_condition_is_refused(driven_sd3: Any) -> None:
    def planted(pipeline: Any) -> Any:
        made = type(pipeline)
        prepare = made.prepare_latents

        def prepare_latents(self: Any, *args: Any, **kwargs: Any) -> Any:
            latents = prepare(self, *args, **kwargs)
            latents[:, :, :2] = 0.5
            return latents

        pipeline.__class__ = type(made.__name__, (made,), {"prepare_latents": prepare_latents})
        return pipeline

    with pytest.raises(ConfigError, match="come from the prompt's image"):
        driven_sd3(planted)


def test_a_difference_to_the_stock_run_is_refused_with_the_number(driven_sd3: Any) -> None:
    policy = driven_sd3()
    refuse_difference(stock_difference(policy.driven, Prompt("a cat"), 3.0, 2), 3.0, 1e-5)
    policy.driven.driver.time_of = lambda sigma: torch.tensor(sigma * 900)
    with pytest.raises(ConfigError, match="guidance_scale 3 differ from those of the stock pipeline by"):
        refuse_difference(stock_difference(policy.driven, Prompt("a cat"), 3.0, 2), 3.0, 1e-5)
