"""One iteration on BranchGRPO's trees against one on chains: the same leaves, steps, prompts and loss.

    python benchmarks/trees.py --pairs 7

A tree of 16 leaves splits at steps 0, 3, 6 and 9 of 20; the chains are 16 samples of the same SDE, each from its own
latent. Both are mmrl's own collector, policy and updater on the shapes lab, in turns in one process.
Bars: exactly 203 calls of a tree in rollout (320 of chains) and 187 in update (304); seconds at most 0.75x.
"""

import tempfile
from pathlib import Path

import torch
from _common import argument_parser, emit, in_turns, median_ratio, median_seconds
from _timed import MmrlIteration

from mmrl.core.config import load_config

GROUPS, LEAVES, STEPS = 8, 16, 20
SAMPLERS = {
    "tree": ("{name: branch_grpo, sigmas: uniform}", "{name: tree}"),
    "chains": (
        "{name: dance_sde, sigmas: uniform, share_noise: false, train_fraction: 1}",
        "{name: grpo, is_unbiased: true, epsilon: 1e-8}",
    ),
}


def iteration(side: str, folder: Path, threads: int) -> MmrlIteration:
    sampler, advantage = SAMPLERS[side]
    config = load_config("lab/branch_grpo", [
        f"threads={threads}", f"group_size={LEAVES}", f"prompts_per_iteration={GROUPS}", f"sampler={sampler}",
        f"sampler.num_steps={STEPS}", f"advantage={advantage}", "updates.micro_batch=128",
    ])  # fmt: skip
    return MmrlIteration.of(config, folder / side)


def calls(side: MmrlIteration) -> dict[str, int]:
    """Network calls of a group, counted."""
    rollout = side.trainer.collector(side.number, "trained").num_calls
    before = side.policy.num_calls
    side()
    update = side.policy.num_calls - before - rollout
    return {"rollout": rollout // GROUPS, "update": update // GROUPS}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        tree, chains = (iteration(side, Path(name), options.threads) for side in SAMPLERS)
        pairs = in_turns(tree, chains, options.pairs)
        emit(
            "trees",
            pairs=options.pairs,
            calls_per_tree=calls(tree),
            calls_per_chains=calls(chains),
            ratio_rollout=round(median_ratio(pairs, "rollout"), 3),
            ratio_update=round(median_ratio(pairs, "update"), 3),
            ratio_rollout_and_update=round(median_ratio(pairs, "rollout", "update"), 3),
            ratio_with_decoding_and_scoring=round(median_ratio(pairs, *pairs[0][0]), 3),
            seconds_tree=median_seconds([first for first, _ in pairs]),
            seconds_chains=median_seconds([second for _, second in pairs]),
        )


if __name__ == "__main__":
    main()
