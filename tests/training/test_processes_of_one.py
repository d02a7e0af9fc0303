"""Devices, precision and processes: what two processes do together, and the float16 scale."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.core.contracts import ConfigError, RunError
from mmrl.training.processes import Processes
from tests.process_runs import in_processes

pytestmark = pytest.mark.slow  # what they import of torch.distributed takes ten seconds


def one_parameter(value: float = 1.0) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(torch.tensor([value]))
    return parameter, torch.optim.SGD([parameter], lr=1.0)


def _lists() -> dict[str, Any]:
    engine = Processes()
    own = ["x", "y"] if engine.is_main else ["z"]
    return {
        "share": engine.share("abcde"),
        "share of one": engine.share("a"),
        "gather": engine.gather(own),
        "gather of one": engine.gather(own if engine.is_main else []),
        "before": engine.count_before(len(own)),
        "sum": engine.sum(torch.tensor([1.5, 2.0]) if engine.is_main else torch.tensor([0.25, -2.0])).tolist(),
        "is_main": engine.is_main,
        "num_processes": engine.num_processes,
    }


def test_two_processes_divide_lists_and_put_them_together_in_their_order() -> None:
    main, other = in_processes(_lists, 2)
    assert (main.pop("share"), other.pop("share")) == (["a", "c", "e"], ["b", "d"])
    assert (main.pop("share of one"), other.pop("share of one")) == (["a"], [])
    assert (main.pop("before"), other.pop("before")) == (0, 2)
    assert (main.pop("is_main"), other.pop("is_main")) == (True, False)
    assert main == other
    assert main["gather"] == ["x", "y", "z"] and main["gather of one"] == ["x", "y"]
    assert main["sum"] == [1.75, 0.0] and main["num_processes"] == 2


def _step(max_norm: float | None) -> tuple[float, list[float]]:
    """One process knows the gradient of the first parameter, the other that of the second."""
    engine = Processes()
    first, second = nn.Parameter(torch.tensor([[1.0], [2.0]])), nn.Parameter(torch.tensor(3.0))
    if engine.is_main:
        first.grad = torch.tensor([[1.0], [0.0]])
    else:
        first.grad = torch.tensor([[2.0], [0.0]])
        second.grad = torch.tensor(4.0)
    optimizer = torch.optim.SGD([first, second], lr=1.0)
    norm = engine.step(optimizer, [first, second], max_norm)
    assert first.grad is None and second.grad is None
    return float(norm), [*first.flatten().tolist(), float(second)]


def _free_step() -> tuple[float, list[float]]:
    return _step(None)


def _clipped_step() -> tuple[float, list[float]]:
    return _step(2.5)


def test_a_step_follows_the_summed_gradient_and_a_missing_one_is_zero() -> None:
    for norm, values in in_processes(_free_step, 2):
        assert norm == 5.0  # of (1 + 2, 0, 4); each process alone has 1 and sqrt(20)
        assert values == [-2.0, 2.0, -1.0]


def test_the_summed_gradient_is_what_is_clipped() -> None:
    for norm, values in in_processes(_clipped_step, 2):
        assert norm == 5.0
        assert values == pytest.approx([1 - 1.5, 2.0, 3 - 2.0], abs=1e-5)  # half of it


def test_a_missing_gradient_is_zero_on_one_process_too() -> None:
    used, _ = one_parameter()
    unused, _ = one_parameter()
    optimizer = torch.optim.SGD([used, unused], lr=0.1, weight_decay=1.0)
    engine = Processes()
    engine.backward(used.sum())
    engine.step(optimizer, [used, unused], None)
    assert unused.item() == pytest.approx(0.9)  # as on two processes, where the other may have used it


def _failing() -> dict[str, str]:
    engine, seen = Processes(), {}
    for name, on_main, on_other in (
        ("other", None, ConfigError("mine")),
        ("main", RunError("disk"), None),
        ("both", RunError("first"), ConfigError("second")),
        ("foreign", None, KeyError("lost")),
        ("nobody", None, None),
    ):
        own: Exception | None = on_main if engine.is_main else on_other
        try:
            with engine.lockstep():
                if own is not None:
                    raise own
            seen[name] = "fine"
        except (ConfigError, RunError, KeyError) as error:
            seen[name] = f"{type(error).__name__}: {error}"
    return seen


def test_an_error_of_one_process_is_raised_on_all() -> None:
    main, other = in_processes(_failing, 2)
    assert main == {
        "other": "ConfigError: mine",
        "main": "RunError: disk",
        "both": "RunError: first",
        "foreign": "RunError: another process failed with KeyError: 'lost'",
        "nobody": "fine",
    }
    # its own, with the traceback that --debug shows
    assert other == main | {"both": "ConfigError: second", "foreign": "KeyError: 'lost'"}


def test_an_error_on_one_process_alone_is_raised_as_it_is() -> None:
    with pytest.raises(RunError, match="disk"), Processes().lockstep():
        raise RunError("disk")
    with pytest.raises(ZeroDivisionError), Processes().lockstep():
        raise ZeroDivisionError


def test_float16_scales_the_loss_and_takes_the_scale_off_before_the_step() -> None:
    engine = Processes("float16")
    parameter, optimizer = one_parameter()
    scale = engine.scaler.get_scale()
    engine.backward((0.25 * parameter).sum())
    assert parameter.grad is not None and parameter.grad.item() == 0.25 * scale > 1
    norm = engine.step(optimizer, [parameter], max_norm=None)
    assert norm.item() == 0.25 and parameter.item() == 0.75


def test_a_float16_step_that_overflows_is_skipped_and_halves_the_scale() -> None:
    engine = Processes("float16")
    parameter, optimizer = one_parameter()
    scale = engine.scaler.get_scale()
    engine.backward((1e38 * parameter).sum())
    engine.step(optimizer, [parameter], max_norm=1.0)
    assert parameter.item() == 1.0 and parameter.grad is None
    assert engine.scaler.get_scale() == scale / 2
    engine.backward(parameter.sum())
    engine.step(optimizer, [parameter], max_norm=None)
    assert parameter.item() == 0.0


def test_the_scale_survives_a_checkpoint() -> None:
    engine, resumed = Processes("float16"), Processes("float16")
    parameter, optimizer = one_parameter()
    for size in (1e38, 1.0):
        engine.backward((size * parameter).sum())
        engine.step(optimizer, [parameter], max_norm=None)
    state = json.loads(json.dumps(engine.state_dict()))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == engine.state_dict() and resumed.state_dict()["_growth_tracker"] == 1
    assert resumed.scaler.get_scale() == engine.scaler.get_scale() == 2.0**15


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_precisions_have_no_scale(precision: Any) -> None:
    engine = Processes(precision)
    parameter, _ = one_parameter()
    engine.backward(parameter.sum())
    assert parameter.grad is not None and parameter.grad.item() == 1.0
    assert engine.state_dict() == {}
    engine.load_state_dict({})
