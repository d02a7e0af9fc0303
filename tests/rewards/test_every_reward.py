"""Properties of every shipped reward, found by walking the folder; its own test file says how to ask it."""

import builtins
import inspect
import io
import json
import math
import os
import random
import socket
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Fitted, Granularity, Placement, Reward, RewardBatch
from mmrl.core.data import Outputs, Scores
from mmrl.core.dense import DENSE
from mmrl.core.keys import generator
from mmrl.core.likelihoods import ADAPTER, thought_needs
from mmrl.core.plugins import build, find, names
from mmrl.core.reward_batches import IMAGE, LOADED, MEDIA, NEEDS, check_needs, check_prompts, select, units_of
from mmrl.rewards.base.wrapper import as_wide_as
from mmrl.scoring.calls import call_reward
from mmrl.training.checkpoint import with_tensors, without_tensors
from tests.parameters import slow_but
from tests.rewards.example import Example, example_of

SEEDS = range(12)
PATHS = ("read", "written")
FAST = ("clip_score", "http", "router", "vlm_judge")  # one of each kind of those that have twins
WITHOUT_TWINS = [one for one in names("rewards") if not hasattr(find("rewards", one), "tiny")]


@pytest.fixture(scope="module", params=slow_but(names("rewards"), *WITHOUT_TWINS, *FAST))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def example(name: str) -> Example:
    return example_of(name)


@pytest.fixture(scope="module")
def reward(name: str, example: Example, tmp_path_factory: pytest.TempPathFactory) -> Reward:
    """Each reward, on its tiny twin where it needs weights or a server."""
    plugin = build("rewards", {"name": name} | dict(example.settings))
    if plugin.needs & set(LOADED):
        plugin = plugin.tiny(0, tmp_path_factory.mktemp(name))
        plugin.prepare(Placement(torch.device("cpu"), torch.float32))
    return plugin  # type: ignore[no-any-return]


def example_batch(example: Example, seed: int) -> RewardBatch:
    batch = example.random_batch(random.Random(seed))
    return replace(batch, generator=generator(*batch.seeds))


def test_the_class_says_what_the_reward_is(name: str, example: Example, reward: Reward) -> None:
    cls: Any = find("rewards", name)
    for said in (cls, reward):
        low, high = said.range
        assert isinstance(said.source, str) and said.source
        assert isinstance(low, float) and isinstance(high, float) and low < high
        assert said.granularity in get_args(Granularity)
        assert isinstance(said.differentiable, bool)
        assert isinstance(said.needs, frozenset)
        assert all(need in NEEDS or need.startswith(("target.", ADAPTER)) for need in said.needs)
        assert said.batch_size is None or (isinstance(said.batch_size, int) and said.batch_size > 0)
    if math.inf in map(abs, cls.range):
        text = " ".join([inspect.getdoc(cls) or "", inspect.getsource(cls)])
        assert "unbounded" in text or "inner reward" in text, "an infinite range needs a reason"
    assert isinstance(reward, Reward)
    assert not {"name", "weight", "label", "device"} & {item.name for item in fields(cls)}, "the mix takes these"
    if reward.needs & set(LOADED):
        assert hasattr(cls, "tiny") and hasattr(cls, "prepare"), "what loads weights or asks a server has a tiny twin"
    else:
        assert not hasattr(cls, "prepare") or hasattr(cls, "inner_rewards"), "what has `prepare` needs a model"


def test_scores_keep_to_the_range_and_come_near_both_ends(reward: Reward, example: Example) -> None:
    low, high = reward.range
    seeds = SEEDS[:2] if "model" in reward.needs else SEEDS
    found = [reward.score(example_batch(example, seed)) for seed in seeds]
    found += [reward.score(example.best())] if example.best is not None else []
    for scores in found:
        assert scores.dtype == torch.float32 and scores.isfinite().all()
        assert scores.dim() == (2 if reward.granularity in DENSE else 1)
        assert (scores >= low - 1e-5).all() and (scores <= high + 1e-5).all()
    together = torch.cat([scores.flatten() for scores in found])
    if math.isfinite(high - low) and "model" not in reward.needs:  # a random twin says what it likes
        quarter = (high - low) / 4
        assert float(together.min()) <= low + quarter and float(together.max()) >= high - quarter
    else:
        assert len(together.unique()) > 1


def test_the_ground_truth_scores_the_maximum(reward: Reward, example: Example) -> None:
    if example.best is None:
        pytest.skip("there is no ground truth; the test file says why")
    best, high = reward.score(example.best()), reward.range[1]
    if math.isfinite(high) and float(best.max()) == pytest.approx(high, abs=1e-5):
        return
    most = max(float(reward.score(example_batch(example, seed)).max()) for seed in SEEDS)
    assert float(best.max()) >= most - 1e-5


def test_the_same_batch_has_the_same_scores_and_is_left_as_it_was(reward: Reward, example: Example) -> None:
    batch, twin = example_batch(example, 3), example_batch(example, 3)
    first = reward.score(batch)
    assert torch.equal(first, reward.score(twin)) and torch.equal(first, reward.score(example_batch(example, 3)))
    for item in fields(Outputs):
        left, right = getattr(batch.outputs, item.name), getattr(example_batch(example, 3).outputs, item.name)
        assert torch.equal(left, right) if isinstance(left, Tensor) else left == right


def test_order_does_not_matter(reward: Reward, example: Example) -> None:
    batch = example_batch(example, 4)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(2))
    scores = reward.score(batch)
    torch.testing.assert_close(reward.score(select(batch, order)), scores[order], rtol=1e-4, atol=1e-5)


def test_a_batch_scores_as_its_parts_do(reward: Reward, example: Example) -> None:
    batch = example_batch(example, 5)
    parts = [as_wide_as(batch, reward.score(select(batch, rows))) for rows in units_of(reward, batch)]
    rows = torch.cat(units_of(reward, batch))
    torch.testing.assert_close(reward.score(batch)[rows], torch.cat(parts), rtol=1e-4, atol=1e-5)


def test_what_it_needs_is_complete_and_missed_where_it_lacks(reward: Reward, example: Example) -> None:
    """With nothing but what is declared it judges; without any of it a clear error comes before it is asked."""
    batch = example_batch(example, 6)
    media = {need for need in reward.needs if need in MEDIA}
    given = media | ({"audio_rate"} if "audio" in media else set())  # samples without a rate are no sound
    outputs = Outputs(
        **{item.name: getattr(batch.outputs, item.name) for item in fields(Outputs) if item.name in given}
    )
    entries = {need.removeprefix("target.") for need in reward.needs if need.startswith("target.")}
    prompts = tuple(
        replace(
            prompt,
            target={
                key: value for key, value in prompt.target.items() if key in entries or hasattr(reward, "inner_rewards")
            },
            media=prompt.media if IMAGE in reward.needs or "canvases" in media else (),
        )
        for prompt in batch.prompts
    )
    bare = replace(batch, outputs=outputs, prompts=prompts)
    check_needs("r", reward, bare)
    check_prompts("r", reward, bare.prompts)
    bare_scores = reward.score(bare)
    assert bare_scores.isfinite().all()
    if prompts == batch.prompts:  # fields that it may use but does not need make a difference
        assert torch.equal(bare_scores, reward.score(batch))
    for need in sorted(reward.needs - set(LOADED) - {"controls"}):
        if need in media:
            lacking = replace(bare, outputs=replace(outputs, **{need: None}))
        elif need == IMAGE:
            lacking = replace(bare, prompts=tuple(replace(prompt, media=()) for prompt in prompts))
        elif thought_needs({need}):
            lacking = replace(bare, likelihoods={}, right_answer={}, turn_answer={}, adapter_scores={})
        else:
            gone = need.removeprefix("target.")
            lacking = replace(
                bare,
                prompts=tuple(
                    replace(one, target={key: value for key, value in one.target.items() if key != gone})
                    for one in prompts
                ),
            )
        with pytest.raises(ConfigError):
            check_needs("r", reward, lacking)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files, addresses and programs that Python opens from here on.

    Not by an audit hook: before Python 3.12, a thread that starts under coverage fails if another one is in a hook.
    """
    seen: list[str] = []

    def record(where: Any, name: str) -> None:
        called = getattr(where, name)

        def recorded(*given: Any, **named: Any) -> Any:
            shown = [one for one in given if not isinstance(one, subprocess.Popen)]  # which cannot be printed yet
            seen.append(f"{name} {shown} {named.get('args')}")
            return called(*given, **named)

        monkeypatch.setattr(where, name, recorded)

    for where, name in (
        (builtins, "open"),
        (io, "open"),
        (os, "open"),
        (socket, "getaddrinfo"),
        (socket.socket, "connect"),
        (subprocess.Popen, "__init__"),
    ):
        record(where, name)
    return seen


def test_it_opens_no_file_and_no_address_unless_it_says_so(reward: Reward, example: Example, opened: list[str]) -> None:
    batch = example_batch(example, 7)
    reward.score(batch)  # what it imports when it is first asked
    opened.clear()
    reward.score(batch)
    assert opened == [] or "service" in reward.needs


def test_what_is_opened_is_seen(opened: list[str], tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("")
    socket.getaddrinfo("localhost", 1)
    subprocess.run(["true"], check=True)
    assert [word in " ".join(opened) for word in ("seen", "getaddrinfo", "true")] == [True] * 3


def test_its_state_survives_a_checkpoint(reward: Reward, name: str, example: Example, tmp_path: Path) -> None:
    if not hasattr(reward, "state_dict"):
        return
    batch, number = example_batch(example, 8), torch.arange(len(example_batch(example, 8)))
    before = reward.state_dict()
    values = reward.score(batch).reshape(len(batch), -1).sum(1)  # of a dense one, as the core has it
    examples = {"r": reward.score_with_examples(batch)[1]} if isinstance(reward, Fitted) else {}
    plain = (values[:, None], ("r",), (1.0,), ~values.isnan(), batch.group, number, number * 0)
    reward.update(Scores(*plain, examples=examples))  # type: ignore[attr-defined]
    state, tensors = without_tensors(reward.state_dict(), "r")
    other: Any = build("rewards", {"name": name} | dict(example.settings))
    other.load_state_dict(with_tensors(json.loads(json.dumps(state)), tensors))
    loaded, same = without_tensors(other.state_dict(), "r")
    assert loaded == state and same.keys() == tensors.keys()
    assert all(torch.equal(same[key], tensor) for key, tensor in tensors.items())
    if "model" not in reward.needs:
        torch.testing.assert_close(other.score(batch), reward.score(batch), rtol=0, atol=0)
    reward.load_state_dict(before)  # type: ignore[attr-defined]


def test_a_differentiable_reward_has_the_gradient_of_its_finite_differences(reward: Reward, example: Example) -> None:
    if not reward.differentiable:
        batch = example_batch(example, 9)
        assert not call_reward("r", reward, batch).values.requires_grad
        return
    batch = example_batch(example, 9)
    if isinstance(reward, Fitted):  # it has no gradient before it has learned
        number = torch.arange(len(batch))
        scores, examples = reward.score_with_examples(batch)
        plain = (scores[:, None], ("r",), (1.0,), number >= 0, batch.group, number, number * 0)
        reward.update(Scores(*plain, examples={"r": examples}))  # type: ignore[attr-defined]
    kinds = ("latents", "videos", "images")
    kind = next(kind for kind in kinds if getattr(batch.outputs, kind) is not None)
    source = getattr(batch.outputs, kind)
    # away from the ends and from equal pixels, where clamps and distances have corners
    noise = torch.rand(source.shape, generator=torch.Generator().manual_seed(0))
    media = (0.3 + 0.4 * noise).requires_grad_()

    def total(values: Tensor) -> Tensor:
        changed: dict[str, Any] = {kind: values}
        return reward.score(replace(batch, outputs=replace(batch.outputs, **changed))).double().sum()

    (gradient,) = torch.autograd.grad(total(media), media)
    norm = gradient.norm().double()
    assert norm > 0
    step = 0.004 * gradient / norm
    with torch.no_grad():
        slope = (total(media + step) - total(media - step)) / 0.008
    torch.testing.assert_close(slope, norm, rtol=0.02, atol=1e-4)


def test_a_reward_scores_without_a_graph_where_no_gradient_is_asked_for(reward: Reward, example: Example) -> None:
    assert not reward.score(example_batch(example, 10)).requires_grad
