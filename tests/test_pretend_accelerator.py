"""What runs on a CPU alone runs on an accelerator too: no operation mixes tensors of both."""

import linecache
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.commands.instrumentation import JitteredReward
from mmrl.core import plugins
from mmrl.core.contracts import Placement, RewardBatch
from mmrl.core.data import Rollout
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins
from tests.parameters import in_one_test
from tests.pretend_accelerator import DEVICE, Notes, Remote, pretended, tiny_run

ROOT = Path(__file__).parents[1]


def test_an_operation_on_tensors_of_both_is_noted_and_what_a_gpu_allows_is_not() -> None:
    with pretended() as notes:
        mixes = notes.mixes
        here, there = torch.arange(4.0), torch.arange(4.0, device=DEVICE)
        number = torch.tensor(2.0)  # without axes
        rows, column = torch.tensor([3, 1]), torch.tensor([0, 2], device=DEVICE)
        assert isinstance(there, Remote) and there.device == DEVICE
        for allowed in (there + 1, there * number, there[rows], there[column], there[[3, 1]], here.to(DEVICE) + there):
            assert isinstance(allowed, Remote)
        assert there[rows].tolist() == there[[3, 1]].tolist() == [3.0, 1.0] and there.sum().item() == 6.0
        there[column] = 0.0
        copied = torch.empty(4).copy_(there)
        assert type(copied) is Tensor and (copied + here).tolist() == [0.0, 2.0, 2.0, 6.0] and not mixes
        there + here, here[column], torch.cat([here, there]), there.index_put_((column,), here[:2])
        operations = [said.partition(" at ")[0] for said in mixes]
    assert operations == ["aten.add.Tensor", "aten.index.Tensor", "aten.cat.default", "aten.index_put_.default"]


def test_gradients_and_modules_go_there_and_back() -> None:
    layer = torch.nn.Linear(2, 1)
    weight = layer.weight.detach().clone()
    with pretended() as notes:
        layer.to(DEVICE)
        assert isinstance(layer.weight, Remote)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            layer(torch.tensor([[1.0, 3.0]], device=DEVICE)).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=1.0).step()
        moved = layer.weight.detach().cpu()
        assert not notes.mixes
    torch.testing.assert_close(moved, weight - torch.tensor([[1.0, 3.0]]))
    assert torch.autocast.__name__ == "autocast" and torch.zeros(1, device=DEVICE).__class__ is Tensor


def test_the_noise_on_scores_is_where_the_scores_are() -> None:
    class Reward:
        range = (0.0, 1.0)

        def score(self, batch: RewardBatch) -> Tensor:
            return torch.tensor([0.5, 0.25], device=DEVICE)

    class Batch:
        seeds = (1_500, 7_250)

    batch: Any = Batch()
    with pretended() as notes:
        scores = JitteredReward.on(Reward()).score(batch)
        assert isinstance(scores, Remote) and not notes.mixes
    torch.testing.assert_close(scores.held, torch.tensor([0.55, 0.275]))


def count_syncs(operation: Callable[[Remote], object]) -> int:
    """How many reads of the host are counted in an operation on [0., 1., 2., 3.] of the accelerator."""
    with pretended() as notes:
        operation(torch.arange(4.0, device=DEVICE))  # type: ignore[arg-type]
    return notes.syncs.total()


SYNCS: dict[str, tuple[int, Callable[[Any], object]]] = {
    "item": (1, lambda x: x[0].item()),
    "float": (1, lambda x: float(x.sum())),
    "if": (1, lambda x: bool((x > 1).any())),
    "list": (1, lambda x: x.tolist()),
    "to the host": (1, lambda x: x.cpu()),
    "into a tensor of the host": (1, lambda x: torch.empty(4).copy_(x)),
    "nonzero": (1, lambda x: x.nonzero()),
    "bool index": (1, lambda x: x[x > 1]),
    "values at a bool index": (1, lambda x: x.__setitem__(x > 1, x[:2] + 0)),
    "unique": (1, lambda x: x.unique()),
    "repeats": (1, lambda x: x.repeat_interleave(x.long())),
    "equal": (1, lambda x: torch.equal(x, x)),
    "numbers of a list": (2, lambda x: torch.tensor([x[0], x[1] + 1])),
    "indices": (0, lambda x: x[x.long()]),
    "one number at a bool index": (0, lambda x: x.__setitem__(x > 1, 0.0)),
    "repeats of a known size": (0, lambda x: x.repeat_interleave(x.long(), output_size=6)),
    "nonzero of a known size": (0, lambda x: x.nonzero_static(size=3)),
    "to the device": (0, lambda x: torch.ones(4).to(x.device)),
    "sums": (0, lambda x: (x.cumsum(0) + x.sum()).where(x > 1, 0.0)),
}


@in_one_test("name", SYNCS)
def test_what_the_host_waits_for_is_counted(name: str) -> None:
    count, operation = SYNCS[name]
    assert count_syncs(operation) == count


def test_reads_are_counted_by_phase_and_copies_apart() -> None:
    with pretended() as notes:
        made = torch.ones(2).to(DEVICE)
        torch.ones(2).to(DEVICE, non_blocking=True)
        with notes.phase("inside"):
            made.sum().item()
        made.tolist()
    assert [notes.count("syncs", phase) for phase in ("inside", "elsewhere", "none")] == [1, 1, 0]
    assert notes.copies.total() == notes.count("copies", "elsewhere") == 1


def test_a_read_of_a_backward_pass_is_told_by_the_line_of_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    file, text = str(ROOT / "mmrl" / "made_up.py"), "indexed.sum().backward()"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, [text], file))
    with pretended() as notes:
        names: dict[str, Any] = {"x": torch.arange(4.0, device=DEVICE).requires_grad_()}
        exec(compile("indexed = x[x > 1]", "/packages/transformers/made_up.py", "exec"), names)
        exec(compile(text, file, "exec"), names)
    assert [line for _, line in notes.syncs] == [
        "no line of mmrl [in transformers/made_up.py:1]",
        f"mmrl/made_up.py:1: {text} [in transformers/made_up.py:1, backwards]",
    ]


def rollout_there(max_tokens: int, **distribution: Any) -> tuple[Rollout, Notes]:
    """A rollout of a small model on the pretend accelerator, and what was noted."""
    policy = VisionLanguage(model=str(vision_twins.twin("qwen2_5_vl")), vision="trained")
    with pretended() as notes:
        policy.prepare(Placement(DEVICE, torch.float32))
        return vision_twins.rollout(policy, max_tokens, **distribution), notes


@pytest.mark.slow  # every operation by way of Python
@pytest.mark.parametrize(("num_syncs", "distribution"), [(1, {}), (2, {"top_p": 0.9, "stop": ("e", "t")})])
def test_an_accelerator_samples_the_same_answers_and_is_read_every_sixteen_tokens(
    num_syncs: int, distribution: dict[str, Any]
) -> None:
    here = vision_twins.rollout(vision_twins.policy(), 40, **distribution)
    there, notes = rollout_there(40, **distribution)
    assert there.outputs.texts == here.outputs.texts
    torch.testing.assert_close(there.trace.completions.log_prob, here.trace.completions.log_prob)
    assert torch.equal(there.trace.completions.tokens, here.trace.completions.tokens)
    assert not notes.mixes and notes.units["decoded step"] <= 16 * notes.units["block of steps"]
    assert notes.count("syncs", "decoding") == num_syncs * notes.units["block of steps"] > 0


# a config of each modality, and of each kind of loss: decisions, pairs, whole groups, denoising, media with a gradient,
# gradients of rewards by states, answers that the data brings
CONFIGS = {
    "quickstart_agent": "agent",
    "families/chroma": "diffusers_pipeline",
    "lab/gspo": "gui",
    "lab/nft": "sd3",
    "lab/dgpo": "sd3",
    "lab/draft": "sd3",
    "lab/adjoint_matching": "sd3",
    "ddpo_sd15": "stable_diffusion",
    "nft_sdxl": "stable_diffusion_xl",
    "lab/one_shot_clips": "video",
    "lab/diffusion_dpo_offline": "sd3",
    "scst_qwen25vl_3b": "vision_language",
}


def test_every_modality_has_a_config() -> None:
    assert set(CONFIGS.values()) == set(plugins.names("modalities"))


@pytest.mark.filterwarnings("ignore")  # of the stock pipelines
@pytest.mark.slow  # two iterations each, every operation by way of Python
@pytest.mark.parametrize("config", CONFIGS)
def test_check_tiny_of_a_config_mixes_no_devices(config: str) -> None:
    is_good, notes = tiny_run(config)
    assert is_good and not notes.mixes
    assert notes.count("syncs", "decoding") <= 2 * notes.units["block of steps"]
    assert notes.count("syncs", "micro-batch") <= 4 * notes.units["micro-batch"]
    assert notes.units["iteration"] == 2 and notes.units["micro-batch"] > 0


def test_what_other_threads_do_is_noted() -> None:
    def work() -> None:
        torch.arange(4.0) + torch.arange(4.0, device=DEVICE)

    with pretended() as notes:
        thread = Thread(target=work)
        thread.start()
        thread.join()
    assert notes.mixes.total() == 1
    assert Thread.run.__module__ == "threading"


def test_a_class_of_tensors_keeps_its_methods_there() -> None:
    class Doubled(Tensor):
        def tolist(self) -> list[float]:
            return [2 * value for value in super().tolist()]

    with pretended() as notes:
        there: Any = torch.arange(2.0, device=DEVICE)
        doubled = there.as_subclass(Doubled)
        assert doubled.tolist() == [0.0, 2.0] and doubled.device == DEVICE
        assert type(doubled + 1) is type(doubled.as_subclass(Tensor)) is Remote
        torch.arange(2.0) + doubled
    assert notes.mixes.total() == 1
