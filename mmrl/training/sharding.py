"""Sharded weights: each process holds a part of every tensor, and a layer is whole only while it is computed."""

from collections.abc import Mapping, Sequence

from torch import nn

from mmrl.core.contracts import ConfigError, Modality, Sampler, Shardable
from mmrl.core.keys import GroupKey
from mmrl.plans.offline import OfflinePlan

Place = tuple[nn.Module, str]  # whose attribute of which name


def shard(
    modules: Sequence[nn.Module], networks: Sequence[nn.Module], trained: Mapping[str, nn.Parameter], size: int
) -> dict[str, nn.Parameter]:
    """Shards all parameters of `modules` over `size` processes with FSDP2 (Zhao et al. 2023, arXiv 2304.11277).

    Gradients are summed, not averaged: a loss is divided by its global denominator already. Tensors that several layers
    share (tied embeddings) stay shared.

    Args:
        modules: with all trained weights; every process holds the same numbers. networks: the parts of them that are
            called, each a tree of its own; their layers (members of a ModuleList) are gathered one by one, the rest for
            the whole call. What belongs to no network is cut too, and gathered by `weights.whole` where it is used.
        trained: the trained parameters by name.
    Returns:
        the trained parameters that now stand in their places, by name.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    places: dict[int, list[Place]] = {}
    before: dict[int, nn.Parameter] = {}  # held, so that no new tensor gets the id of a replaced one
    for module in (child for tree in modules for child in tree.modules()):
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
            before[id(parameter)] = parameter
    mesh = init_device_mesh(next(iter(before.values())).device.type, (size,))
    for network in networks:
        for layer in [*layers_of(network), network]:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
            assert isinstance(layer, FSDPModule)
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    after = {}
    for key, parameter in before.items():
        now = [getattr(module, name) for module, name in places[key]]
        cut = next((one for one in now if isinstance(one, DTensor)), None)
        if cut is None:
            cut = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        shared = cut if isinstance(cut, nn.Parameter) else nn.Parameter(cut, requires_grad=parameter.requires_grad)
        for module, name in places[key]:
            setattr(module, name, shared)
        after[key] = shared
    return {name: after[id(parameter)] for name, parameter in trained.items()}


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Returns the members of every ModuleList that lies in no other one, where they have parameters."""
    layers = []
    for child in network.children():
        members = list(child.children()) if isinstance(child, nn.ModuleList) else layers_of(child)
        layers += [member for member in members if any(True for _ in member.parameters())]
    return layers


def refuse_unshardable(policy: Modality, name: str, precision: str, optimizer: str) -> None:
    """Raises ConfigError where the weights of modality `name` cannot be sharded, or not with these settings."""
    # episodes end when they like, each process alone
    if not isinstance(policy, Shardable) or policy.sample_kind == "turns":
        raise ConfigError(f"sharding is 'full', but modality {name!r} can only be replicated; set sharding to none")
    if precision == "float16":
        raise ConfigError("sharding 'full' needs float32 or bfloat16: nothing agrees on a loss scale over shards")
    if optimizer == "adamw8bit":
        raise ConfigError("sharding 'full' works with adamw, adam and sgd; adamw8bit knows no sharded tensors")


def dummy_rollout(policy: Modality, sampler: Sampler, group_size: int) -> None:
    """Makes the network calls of a rollout of other processes, without a group to sample."""
    assert isinstance(policy, Shardable), "only sharded processes idle"
    plan = sampler.plan(policy, GroupKey(0, 0, 0), group_size)
    if isinstance(plan, OfflinePlan):  # outputs of the data take no call
        plan = plan.online
    if plan is not None:
        policy.dummy_rollout(plan)
