"""Devices, precision and processes; the only file that knows the rank."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from mmrl.core.contracts import (
    ConfigError,
    EngineTwinned,
    Modality,
    Placement,
    RunError,
    SamplingAhead,
    Shardable,
    WeightsName,
)
from mmrl.core.declarations import PolicyDeclaration
from mmrl.core.weights import is_sharded
from mmrl.system.errors import describe
from mmrl.system.json_server import Lost
from mmrl.training.sharding import shard

Item = TypeVar("Item")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class _Abandoned(Exception):
    """Another process failed in a block that this one is in too; `lockstep` finds out how."""


class Processes:
    """The processes of a run, seen from one: its device, its share of the groups, and the sums over all processes.

    Replicated weights have no wrapper around the model: gradients are summed once per optimizer step, after the last
    micro-batch, already divided by the global denominator, so a process without work adds zeros. Sharded weights
    (FSDP2) are gathered layer by layer in every network call and gradients are summed in every backward pass, so all
    processes make equally many of both: `maximum` returns how many.
    """

    def __init__(
        self,
        precision: Literal["float32", "bfloat16", "float16"] = "float32",
        sharding: Literal["none", "full"] = "none",
    ) -> None:
        from accelerate import Accelerator  # with the next one, half of what a command without weights would import

        # without an accelerator `cpu` must be set, else each process of a launcher takes itself for the only one
        self._accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.is_sharded = sharding == "full" and self.num_processes > 1
        self.placement = Placement(
            self._accelerator.device, DTYPES[precision], self.maximum if self.is_sharded else None
        )
        # float16 gradients underflow without a scale; the other dtypes have the range of float32
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")

    @property
    def device(self) -> torch.device:
        """Returns the device of this process."""
        return self.placement.device

    @property
    def is_main(self) -> bool:
        """Returns whether this process is the one that writes files."""
        return bool(self._accelerator.is_main_process)

    @property
    def num_processes(self) -> int:
        """Returns the number of processes of the run."""
        return int(self._accelerator.num_processes)

    def share(self, items: Sequence[Item]) -> list[Item]:
        """Returns this process's part of a list that all processes hold; parts differ by one item at most."""
        return list(items[self._accelerator.process_index :: self.num_processes])

    def own(self, devices: Sequence[Item]) -> Item:
        """Returns this process's one of the devices of a machine. Raises ConfigError where there are too few."""
        number = int(self._accelerator.local_process_index)
        if number >= len(devices):
            raise ConfigError(
                f"rollout.devices must name a device for each process of a machine, got {len(devices)} for process "
                f"number {number + 1}"
            )
        return devices[number]

    def gather(self, items: Sequence[Item]) -> list[Item]:
        """Returns the items of all processes, in the order of the processes. Every process must call it."""
        if self.num_processes == 1:
            return list(items)
        with _others():
            from accelerate.utils import gather_object

            return list(gather_object(list(items)))

    def count_before(self, count: int) -> int:
        """Returns the sum of `count` over the processes before this one. Every process must call it."""
        return sum(self.gather([count])[: self._accelerator.process_index])

    def sum(self, values: Tensor) -> Tensor:
        """Returns the elementwise sum over processes. Every process must call it."""
        if self.num_processes == 1:
            return values
        with _others():
            reduced = self._accelerator.reduce(values.to(self.device), reduction="sum")
        return reduced.to(values.device)  # type: ignore[no-any-return]

    def maximum(self, count: int) -> int:
        """Returns the largest `count` of all processes where weights are sharded, else `count`."""
        if not self.is_sharded:
            return count
        largest, has_failed = self._largest(count, 0)
        if has_failed:
            raise _Abandoned
        return largest

    def _largest(self, *values: int) -> list[int]:
        table = torch.tensor(values, device=self.device)
        with _others():
            torch.distributed.all_reduce(table, torch.distributed.ReduceOp.MAX)
        return table.tolist()

    def shard(self, policy: Modality) -> None:
        """Shards the policy's weights over processes, where the run does so. Copies of the weights come later."""
        if self.is_sharded:
            assert isinstance(policy, Shardable), "checked when the parts were built"
            weights = policy.weights
            modules = list(policy.modules().values())
            weights.shard(shard(modules, policy.networks(), weights.parameters, self.num_processes))

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors, sharded ones whole and on the main process's CPU alone. Every process must call it."""
        whole = {}
        for name, tensor in tensors.items():
            if not is_sharded(tensor):
                whole[name] = tensor
                continue
            with _others():
                full = tensor.full_tensor()
            if self.is_main:
                whole[name] = full.cpu()
        return whole

    def wait(self) -> None:
        """Waits for all processes."""
        with _others():
            self._accelerator.wait_for_everyone()

    @contextmanager
    def lockstep(self) -> Iterator[None]:
        """Makes an error of one process in the block an error of all, so that none waits for a process that is gone.

        All processes wait at the end of the block. Inside, the only collectives are calls of `maximum` and the network
        calls that follow each, and nothing may fail between these two. Raises the block's own error; on the other
        processes ConfigError or RunError.
        """
        own: Exception | None = None
        is_abandoned = False
        try:
            yield
        except _Abandoned:
            is_abandoned = True
        except Exception as error:  # whatever it is: the others would wait for a process that just ends
            own = error
        # a process that fails makes no more calls of `maximum`, so it answers one here: the others are in their
        # next call, or here
        if self.is_sharded and not is_abandoned and not any(self._largest(0, int(own is not None))):
            return
        first = next((error for error in self.gather([_portable(own)]) if error is not None), None)
        if first is not None:
            raise own or first

    def sampled(self, policy: Modality, weights: WeightsName, sample: Callable[[], Item]) -> Item:
        """Returns what `sample` samples by these weights. Every process must call it.

        Where several processes sample by an inference engine, and one of them loses its server, all wait until the
        server is back and has the weights, and sample anew; without time to wait the error of the server is raised.
        """
        while True:
            try:
                with self.sampling(policy, weights):
                    return sample()
            except Lost as error:  # on all processes alike
                if self.num_processes == 1 or not isinstance(policy, EngineTwinned):
                    raise
                with self.lockstep():
                    if self.is_main:
                        policy.recover_engine(error)

    @contextmanager
    def sampling(self, policy: Modality, weights: WeightsName) -> Iterator[None]:
        """Samples by these weights in the block, in `lockstep`; an inference engine gets them once for all processes.

        It gets them when all processes have what it sampled ahead for them. Every process must enter the block.
        """
        names = [""]
        engine = policy if PolicyDeclaration.of(policy).has_inference_engine and self.num_processes > 1 else None
        with policy.weights(weights):
            if engine is not None:
                assert isinstance(engine, EngineTwinned), "it has an engine"
                with self.lockstep():
                    if isinstance(engine, SamplingAhead):
                        engine.settle_ahead()
                with self.lockstep():
                    if self.is_main:
                        names = [engine.send_weights()]
                    elif self.is_sharded:
                        engine.send_shards()
                names = self.gather(names)
            with self.lockstep():
                if isinstance(engine, EngineTwinned) and not self.is_main:
                    engine.share_weights(names[0])
                yield

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sums the gradients over processes, in one message; a missing gradient counts as zero.

        Gradients of sharded parameters are summed already.
        """
        trained = list(parameters)
        for parameter in trained:
            if parameter.grad is None:  # zero, also on a single process: momentum and weight decay act on it
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
        if self.num_processes == 1:
            return
        gradients = [p.grad for p in trained if p.grad is not None and not is_sharded(p)]
        if not gradients:
            return
        total = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, part in zip(gradients, total.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of the loss, scaled where the precision is float16."""
        self.scaler.scale(loss).backward()

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        max_norm: float | None,
        *,
        masters: Callable[[], None] | None = None,
    ) -> Tensor:
        """Makes one optimizer step on the summed gradients if they are finite; returns their norm before clipping.

        `masters`: makes the step where the optimizer steps on masters of the parameters, not on these themselves.
        """
        self.sum_gradients(parameters)
        if masters is None:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if is_sharded(norm):  # of all shards
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(parameters, float("inf") if max_norm is None else max_norm, norm)
        if masters is not None and norm.isfinite():
            masters()
        elif masters is None and (self.scaler.is_enabled() or norm.isfinite()):  # the scaler leaves NaN out itself
            self.scaler.step(optimizer)
            self.scaler.update()
        for parameter in parameters:
            parameter.grad = None
        return norm

    @property
    def may_scale(self) -> bool:
        """Returns whether gradients that overflowed may be finite with a smaller scale of the loss."""
        return self.scaler.is_enabled() and self.scaler.get_scale() >= 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the gradient scaler, for a checkpoint; empty where the precision is not float16."""
        return dict(self.scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of the gradient scaler."""
        if state:
            self.scaler.load_state_dict(state)


@contextmanager
def _others() -> Iterator[None]:
    """Raises RunError where another process is gone, in place of the library's error in a collective."""
    try:
        yield
    except RuntimeError as error:  # of gloo and NCCL: pages of text, the first line says why
        why = str(error).partition("\n")[0]
        hint = "its own message says why; resume the run when that is mended"
        raise RunError(f"another process of this run is gone: {hint} ({why})") from error


def _portable(error: Exception | None) -> ConfigError | RunError | None:
    """Returns an error as other processes get it: ours unchanged, others, which may not pickle, as RunError."""
    if error is None or isinstance(error, ConfigError | RunError):
        return error
    return RunError(f"another process failed with {describe(error)}")
