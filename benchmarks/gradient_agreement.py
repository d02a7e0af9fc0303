"""How much the gradients of an algorithm's iterations agree with each other, before anything is learned.

    python benchmarks/gradient_agreement.py lab/neighbor lab/flow_grpo "lab/neighbor sampler.spread=1.0"

Each argument is a config, with overrides behind it. A run of some iterations, each of one optimizer step that changes
next to nothing, gives gradients at the same weights on other prompts and noise; `cosine` is the mean over pairs of
them, with its standard error over pairs. Near 0 they agree by chance alone, and many steps are needed; near 1 every
iteration says the same.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _common import argument_parser, emit, trainer_of
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

STILL = [
    "optimizer.learning_rate=1e-12", "optimizer.schedule=constant", "updates.epochs=1", "updates.minibatches=1",
    "evaluation=null", "checkpoint.every=0",
]  # fmt: skip


def gradients(config: str, overrides: Sequence[str]) -> Tensor:
    """[iterations, parameters] float32."""
    found: list[Tensor] = []

    def keep(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        every = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
        found.append(torch.cat([gradient.flatten().float() for gradient in every if gradient is not None]))

    hook = register_optimizer_step_pre_hook(keep)
    with tempfile.TemporaryDirectory() as folder:
        trainer_of(config, overrides, Path(folder)).train()
    hook.remove()
    return torch.stack(found)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", help="a config with overrides behind it, each run one argument")
    parser.add_argument("--iterations", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for run in options.runs:
        config, *own = run.split()
        fixed = [f"threads={options.threads}", f"iterations={options.iterations}"]
        found = gradients(config, [*STILL, *fixed, *own])
        rows, columns = torch.triu_indices(len(found), len(found), 1)
        cosines = (normalize(found) @ normalize(found).T)[rows, columns]
        emit(
            "gradient_agreement",
            run=run,
            cosine=round(float(cosines.mean()), 3),
            standard_error=round(float(cosines.std() / len(cosines) ** 0.5), 3),
            norm=float(f"{float(found.norm(dim=1).mean()):.3g}"),
        )


if __name__ == "__main__":
    main()
