"""Rewards and worlds in actors on two nodes: the results are those of threads, also where an actor and a node end."""

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.assembly.build import build, make_trainer
from mmrl.core.actors import ActorSettings, LastingActor
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, Environment, RunError
from mmrl.core.data import Observation, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.environments.browser import Browser
from mmrl.modalities.language.placed_worlds import PlacedEnvironment
from mmrl.plans.answers import EpisodePlan
from mmrl.reporting.tracking import Tracking
from tests.ray_worlds import Killer, SlowCorridor
from tests.toy_worlds import clicker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # processes that each import torch
# many processes on two nodes: on a busy machine a node that lives misses its heartbeats too
ON_TWO_NODES = pytest.mark.exhaustive
SETTINGS = ActorSettings(address="auto", cpus=0.25, start_seconds=600)
TASKS = (Prompt("go to the right", target={"n": 1}), Prompt("go right", target={"n": 2}))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 200 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def second_node(cluster: Any) -> Iterator[Any]:
    """A node beside the head, which a test may kill."""
    node = cluster.add_node(num_cpus=4, object_store_memory=200 * 2**20)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node, allow_graceful=False)


def trained(folder: Path, *overrides: str) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Trains on the shapes lab by a reward with a model; returns the weights, and the metrics of rewards."""
    settings = load_config(
        "lab/flow_grpo",
        [
            f"rewards=[{{name: 'tests.ray_worlds:Brightness', folder: '{folder}', seconds: 0.5}}]",
            "iterations=4",
            "group_size=4",
            "prompts_per_iteration=4",
            "rollout_groups=2",
            "scoring.max_failed_share=0.9",
            "evaluation=null",
            *overrides,
        ],
    )
    folder.mkdir()
    logged: list[dict[str, float]] = []

    class Logging(Tracking):
        def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
            logged.append({key: value for key, value in metrics.items() if "time" not in key and "seconds" not in key})

    trainer = make_trainer(settings, build(settings), folder, Logging())
    assert trainer.train()
    (module,) = trainer.policy.modules().values()
    return module.state_dict(), logged


@ON_TWO_NODES
def test_a_run_outlives_its_actors_and_a_node_with_the_same_weights(
    cluster: Any, second_node: Any, tmp_path: Path
) -> None:
    weights, logged = trained(tmp_path / "threads")
    folder = tmp_path / "ray"
    ends_process = Killer(folder, "iteration1", lambda process, _: os.kill(process, signal.SIGKILL))
    ends_node = Killer(
        folder, "iteration2", lambda *_: cluster.remove_node(second_node, allow_graceful=False), second_node.node_id
    )
    ends_process.start()
    ends_node.start()
    actors = ["scoring.pool=ray", "scoring.copies=4", "scoring.actors={address: auto, cpus: 0.25}"]
    found, also_logged = trained(folder, *actors)
    assert ends_process.has_killed and ends_node.has_killed
    assert len({file.name.split("-")[2] for file in folder.glob("iteration*")}) == 2, "both nodes had actors"
    assert_close(found, weights, rtol=0, atol=0)
    assert logged == also_logged and any(one.get("reward/failed") for one in logged)


def played(environment: Environment, **settings: Any) -> Rollout:
    policy = clicker(environment=environment, parallel=4, step_seconds=600.0, **settings)
    plan = EpisodePlan(num_samples=8, max_tokens=4, max_turns=4)
    keys = [GroupKey(5, 0, 10 + number) for number in range(2)]
    rollout = policy.rollout(TASKS if isinstance(environment, SlowCorridor) else PAGES, [plan] * 2, keys)
    assert len(policy._free) == 4, "sixteen episodes in four copies"
    for world in policy._free:
        world.environment.close()
    return rollout


PAGES = tuple(Prompt("do it", target={"task": name, "seed": 3}) for name in ("form", "tabs"))


def assert_same(found: Rollout, wanted: Rollout) -> None:
    assert found.outputs.texts == wanted.outputs.texts and found.outputs.outcomes == wanted.outputs.outcomes
    assert found.prompts == wanted.prompts, "the same screenshots, pixel for pixel"
    for name in ("group", "episode", "turn", "anchor", "prompt"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert found.outputs.step_rewards is not None and wanted.outputs.step_rewards is not None
    assert torch.equal(found.outputs.step_rewards, wanted.outputs.step_rewards)


@ON_TWO_NODES
def test_episodes_outlive_their_actors_and_a_node(cluster: Any, second_node: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    for one in (tmp_path / "threads", folder):
        one.mkdir()
    wanted = played(SlowCorridor(folder=str(tmp_path / "threads")))
    ends_process = Killer(folder, "step2", lambda process, _: os.kill(process, signal.SIGKILL))
    ends_node = Killer(
        folder, "step3", lambda *_: cluster.remove_node(second_node, allow_graceful=False), second_node.node_id
    )
    ends_process.start()
    ends_node.start()
    found = played(SlowCorridor(folder=str(folder)), pool="ray", actors=SETTINGS)
    assert ends_process.has_killed and ends_node.has_killed
    assert_same(found, wanted)


@ON_TWO_NODES
def test_sixteen_pages_in_four_browsers(cluster: Any, second_node: Any) -> None:
    browser = Browser(width=128, height=96, step_seconds=600, load_seconds=600)
    wanted = played(browser)
    assert len(wanted.outputs.texts or ()) >= 16
    assert_same(played(browser, pool="ray", actors=SETTINGS), wanted)


def test_an_actor_without_room_says_what_there_is(cluster: Any) -> None:
    world = PlacedEnvironment(SlowCorridor(), replace(SETTINGS, cpus=1000.0, start_seconds=3.0))
    world.start()
    with pytest.raises(ConfigError, match=r"SlowCorridor.*takes 1000 CPUs.*give fewer cpus"):
        world.wait()
    world.close()


def test_what_the_object_raises_is_raised_here_and_a_closed_world_opens_again(cluster: Any) -> None:
    world = PlacedEnvironment(SlowCorridor(), SETTINGS)
    world.start()
    world.wait()
    with pytest.raises(OSError, match="the door is closed"):
        world.reset(Prompt("go", target={"trouble": "closed"}), 1)
    world.close()
    with pytest.raises(RunError, match="SlowCorridor is closed"):
        world.state_key()
    assert isinstance(world.reset(TASKS[0], 1), Observation)
    world.close()


def test_an_actor_that_ends_too_often_ends_the_run(cluster: Any) -> None:
    actor = LastingActor(dict, replace(SETTINGS, restarts=0), "a mapping")
    actor.wait()
    assert actor.call("get", "x", 3) == 3
    actor._actor.close()
    with pytest.raises(RunError, match=r"of a mapping has ended.*; 0 restarts"):
        actor.call("get", "x")
