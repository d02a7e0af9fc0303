"""What a pipeline is found to do by trying: the axes of samples, how many a paused call takes, padding."""

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.core.keys import normal

from .driver import Driver, Key
from .network_calls import Form, Learned, Mode
from .paused_call import NotDriven
from .rows import Rows, UnknownRows
from .stand_ins import NetworkCall

_log = logging.getLogger(__name__)
_MODES: tuple[Mode, ...] = ("wide", "copies", "single")  # best first
_LATER = 4  # iterations between two places in the loop that are compared
_FIXED = 0.03  # of the elements of a first state may be equal for other noise
_SEED = 11  # of the probed states
_REPEATED = 1e-3  # what counts as equal where the same call is made again: in half precision, too, it rounds alike


@dataclass(frozen=True)
class Tolerance:
    """How far outputs [n, ...] that count as equal may be apart."""

    most: float
    # Relative to the norm of a sample, the worst of the n; else relative to the largest value. In half precision the
    # rounding of a batch can send a token to another expert of a mixture, which changes few values by much.
    by_norm: bool = False

    def difference(self, got: Tensor, wanted: Tensor) -> float:
        """Returns how far outputs are from the wanted ones; infinity for other shapes."""
        if not self.by_norm or got.shape != wanted.shape:
            return difference(got, wanted)
        off, size = ((value.flatten(1).float().norm(dim=1)) for value in (got - wanted, wanted))
        return float((off / size.clamp(min=1e-12)).max())

    def holds(self, got: Tensor, wanted: Tensor) -> bool:
        """Returns whether outputs count as equal; never where they are not finite."""
        return self.difference(got, wanted) <= self.most


def learn(
    driver: Driver, prompts: Sequence[int], scale: float | None, tolerance: Tolerance, like: Learned | None = None
) -> Learned:
    """Finds what `Learned` holds, leaves it in the driver, and returns it.

    Args:
        prompts: numbers of two prompts of different lengths. scale: of guidance; None: without.
        tolerance: what counts as equal.
        like: what was learned of the same pipeline at another size of samples; only what depends on the size is found.
    Raises:
        NotDriven: the pipeline cannot be driven; says why.
    """
    learned = driver.learned[scale is not None] = Learned()
    with torch.no_grad():
        try:
            _learn_forms(driver, learned, prompts[0], scale)
            if like is not None:
                learned.mode, learned.pads, learned.mask = like.mode, like.pads, like.mask
                if scale is None:
                    _decoded(driver, prompts[0])
                driver.close()
                return learned
            one_by_one = _Probe.of(driver, prompts, scale, tolerance)
            one_by_one.check_the_loop()
        except (IndexError, TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:  # of stock code
            raise NotDriven(f"its loop, when it is paused, ends with {type(error).__name__}: {error}") from error
        _learn_mode(learned, one_by_one)
        _learn_padding(driver, learned, one_by_one, scale)
        if scale is None:
            _learn_decoding(driver, one_by_one)
    driver.close()
    return learned


def captured(driver: Driver, key: Key) -> tuple[list[tuple[NetworkCall, Any]], list[Tensor]]:
    """Returns the network calls of the first iteration with their outputs, and the first state."""
    seen: list[tuple[NetworkCall, Any]] = []

    def answer(call: NetworkCall) -> Any:
        output = driver.call_network(call.network, call.args, call.kwargs)
        seen.append((call, output))
        return output

    made = driver.make(key, answer)
    made.close()
    return seen[: len(seen) // 2], made.parts  # it passes the first iteration and goes to the step of the second


def _learn_forms(driver: Driver, learned: Learned, prompt: int, scale: float | None) -> None:
    ones, parts = captured(driver, Key(prompt, scale, 1))
    twos, more = captured(driver, Key(prompt, scale, 2))
    if [len(part) for part in parts] != [1] * len(parts) or [len(part) for part in more] != [2] * len(parts):
        raise NotDriven("asked for two samples, it does not make two states")
    _check_the_first_state(driver, Key(prompt, scale, 1), parts)
    driver.shapes = tuple(tuple(part.shape[1:]) for part in parts)
    if [(call.network, call.names) for call, _ in ones] != [(call.network, call.names) for call, _ in twos]:
        raise NotDriven("its network calls for two samples are others than those for one")
    for (one, output), (two, outputs) in zip(ones, twos, strict=True):
        try:
            output_rows = Rows.between(output, outputs)
            count = None if output_rows.is_shared else output_rows.count(output)
            call_rows = Rows.between((one.args, one.kwargs), (two.args, two.kwargs), count)
            form = Form(one, output, call_rows, output_rows)
        except UnknownRows as error:
            raise NotDriven(f"the samples in its network call cannot be told apart: {error}") from error
        learned.forms.setdefault((one.network, one.names), form)


def _check_the_first_state(driver: Driver, key: Key, parts: Sequence[Tensor]) -> None:
    """Raises NotDriven where the first state is more than standard normal noise."""
    with _own_noise(driver):
        _, others = captured(driver, key)
    for part, other in zip(parts, others, strict=True):
        if float((part == other).float().mean()) > _FIXED:
            raise NotDriven("parts of its first state are no noise but come from the prompt's image")
        if not 0.5 < float(part.float().square().mean().sqrt()) / driver.first_deviation < 2:
            raise NotDriven("its first state is not standard normal noise")


class _Probe:
    """States of two prompts at two levels, and their outputs one by one."""

    def __init__(self, driver: Driver, prompts: Sequence[int], scale: float | None, tolerance: Tolerance) -> None:
        self.driver, self.prompts, self.scale, self.tolerance = driver, prompts, scale, tolerance
        self.states = normal(_SEED, (4, *driver.latent_shape)).to(driver.time_of(1.0).device)
        self.sigma = torch.tensor([0.9, 0.9, 0.6, 0.6], device=self.states.device)

    @classmethod
    def of(cls, driver: Driver, prompts: Sequence[int], scale: float | None, tolerance: Tolerance) -> "_Probe":
        """Returns the probe with its outputs."""
        probe = cls(driver, prompts, scale, tolerance)
        probe.of_one = probe.one_by_one([prompts[0]] * 4)
        probe.of_two = torch.cat([probe.of_one[:1], probe.one_by_one([prompts[1]] * 4)[1:2]])
        return probe

    of_one: Tensor  # [4, ...] all of the first prompt
    of_two: Tensor  # [2, ...] one of each prompt, at one level

    def one_by_one(self, prompts: Sequence[int]) -> Tensor:
        """Returns the outputs of the states, each alone."""
        return torch.cat([self.at_once([n], [prompt]) for n, prompt in enumerate(prompts)])

    def at_once(self, rows: Sequence[int], prompts: Sequence[int]) -> Tensor:
        """Returns the outputs of some of the states in one evaluation."""
        at = list(rows)
        return self.driver.evaluate(self.states[at], self.sigma[at], list(prompts), self.scale)

    def is_near(self, got: Tensor, wanted: Tensor) -> bool:
        """Returns whether outputs are equal but for the rounding of another batch."""
        return self.tolerance.holds(got, wanted)

    def is_repeated(self, got: Tensor, wanted: Tensor) -> bool:
        """Returns whether outputs of the same call are equal."""
        return difference(got, wanted) <= min(self.tolerance.most, _REPEATED)

    def check_the_loop(self) -> None:
        """Raises NotDriven where outputs depend on more than state, level and prompt."""
        first = self.prompts[0]
        if not bool(self.of_one.isfinite().all()):
            raise NotDriven("its outputs are not finite")
        for _ in range(_LATER):
            again = self.at_once([0], [first])
        if self.is_repeated(again, self.of_one[:1]):
            return
        with _own_noise(self.driver):
            one = self.at_once([0], [first])
        if not self.is_repeated(one, self.of_one[:1]):
            raise NotDriven("it draws noise of its own inside its loop")
        raise NotDriven(
            "its outputs depend on the place in its loop: guidance by the number of the step, or a cache of steps"
        )


@contextmanager
def _own_noise(driver: Driver) -> Iterator[None]:
    """Sets other seeds for what the pipeline draws, with a generator or without."""
    driver.close()
    seed, driver.seed = driver.seed, _SEED
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        yield
    driver.close()
    driver.seed = seed


def difference(got: Tensor, wanted: Tensor) -> float:
    """Returns the largest difference, relative to the largest value."""
    if got.shape != wanted.shape:
        return float("inf")
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def _learn_mode(learned: Learned, probe: _Probe) -> None:
    """Finds the best mode whose outputs are those one by one."""
    reasons = []
    for mode in _MODES:
        learned.mode = mode
        try:
            got = probe.at_once(range(4), [probe.prompts[0]] * 4)
        except Exception as error:  # whatever stock code raises for more samples than it expects
            reasons.append(f"{mode}: {type(error).__name__}: {error}")
            probe.driver.close()
            continue
        if probe.is_near(got, probe.of_one):
            _log.debug("samples of a prompt are served %s; %s", mode, "; ".join(reasons) or "nothing else was tried")
            return
        reasons.append(f"{mode}: outputs differ by {probe.tolerance.difference(got, probe.of_one):.1e}")
    raise NotDriven(f"samples in one network call are not those one by one ({'; '.join(reasons)})")


def _learn_decoding(driver: Driver, probe: _Probe) -> None:
    """Finds whether the stock code decodes several samples at once."""
    prompts = [probe.prompts[0]] * 2
    driver.decodes_many = False
    alone = driver.decode(probe.states[:2], prompts)
    driver.media_shape = tuple(alone.shape[1:])
    driver.decodes_many = True
    try:
        driver.decodes_many = probe.is_near(driver.decode(probe.states[:2], prompts), alone)
    except Exception as error:  # whatever stock code raises for more samples than it expects
        _log.debug("samples are decoded one by one: %s", error)
        driver.decodes_many = False


def _decoded(driver: Driver, prompt: int) -> None:
    """Finds the size of what one sample is decoded to."""
    state = normal(_SEED, (1, *driver.latent_shape)).to(driver.time_of(1.0).device)
    driver.media_shape = tuple(driver.decode(state, [prompt]).shape[1:])


def _learn_padding(driver: Driver, learned: Learned, probe: _Probe, scale: float | None) -> None:
    """Finds what may be padded so that prompts of different lengths share a call, and with which mask."""
    ones, _ = captured(driver, Key(probe.prompts[0], scale, 1))
    twos, _ = captured(driver, Key(probe.prompts[1], scale, 1))
    differing, call = _differing(learned, [one for one, _ in ones], [two for two, _ in twos])
    if not differing:
        return
    driver.num_network_calls = 0
    if not probe.is_near(probe.at_once([0, 1], probe.prompts), probe.of_two):
        raise NotDriven("prompts of different lengths in one evaluation are not those one by one")
    apart = driver.num_network_calls
    for mask in (None, *_absent_masks(driver, call, differing)):
        learned.mask = mask
        learned.pads = differing if mask is None else (*differing, mask[0])
        driver.num_network_calls = 0
        try:
            is_equal = probe.is_near(probe.at_once([0, 1], probe.prompts), probe.of_two)
        except Exception as error:  # whatever a network raises for lengths that do not fit
            _log.debug("padding %s: %s", learned.pads, error)
            driver.close()
            continue
        if is_equal and driver.num_network_calls < apart:
            return
    learned.mask, learned.pads = None, ()  # one call for each length


def _differing(
    learned: Learned, ones: Sequence[NetworkCall], twos: Sequence[NetworkCall]
) -> tuple[tuple[str, ...], NetworkCall]:
    """Returns the names of the arguments whose sizes depend on the prompt, and a call."""
    names: set[str] = set()
    for one, two in zip(ones, twos, strict=True):
        rows = learned.form(one).call_rows
        if one.names != two.names:
            return (), one
        others = rows.leaves((two.args, two.kwargs))
        for path, leaf in rows.leaves((one.args, one.kwargs)).items():
            if isinstance(leaf, Tensor) and leaf.shape != others[path].shape:
                names.add(path[-1])
    return tuple(sorted(names, key=str)), ones[0]


def _absent_masks(driver: Driver, call: NetworkCall, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the masks that the network takes and the pipeline left out, with the tokens that each is about."""
    texts = [name for name in names if isinstance(call.kwargs.get(name), Tensor)]
    if not texts:
        return []
    text = max(texts, key=lambda name: call.kwargs[name].dim())
    takes = inspect.signature(getattr(driver.pipeline, call.network).forward).parameters
    return [(name, text) for name in takes if "mask" in name and call.kwargs.get(name) is None]
