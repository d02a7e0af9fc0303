"""RAFT of torchvision: how far each pixel moves from one frame to the next; and a random small twin."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

from .checkpoints import find_file, put_weights, read_weights
from .tiny import randomise

WHAT = "weights of RAFT large"
WIDTH, TINY_WIDTH = 64, 4  # channels of the first layer, to which all others are in proportion
STRIDE, SMALLEST = 8, 128  # pixels: sides must be multiples, and long enough for four levels of correlations
_FIRST = "feature_encoder.convnormrelu.0.weight"


def raft_of(width: int) -> Any:
    """Returns torchvision's RAFT large (Teed and Deng 2020, arXiv 2003.12039), random; narrower with a smaller width.

    Args:
        width: channels of the first layer; 64 for the published sizes.
    """
    from torch.nn import BatchNorm2d, InstanceNorm2d
    from torchvision.models.optical_flow import raft, raft_large

    def n(channels: int) -> int:
        return channels * width // WIDTH

    layers = (n(64), n(64), n(96), n(128), n(256))
    correlations = raft.CorrBlock(num_levels=4, radius=4)
    motion = raft.MotionEncoder(
        in_channels_corr=correlations.out_channels,
        corr_layers=(n(256), n(192)),
        flow_layers=(n(128), n(64)),
        out_channels=n(128),
    )
    recurrent = raft.RecurrentBlock(
        input_size=n(256), hidden_size=n(128), kernel_size=((1, 5), (5, 1)), padding=((0, 2), (2, 0))
    )
    head = raft.FlowHead(in_channels=n(128), hidden_size=n(256))
    return raft_large(
        feature_encoder=raft.FeatureEncoder(block=raft.ResidualBlock, layers=layers, norm_layer=InstanceNorm2d),
        context_encoder=raft.FeatureEncoder(block=raft.ResidualBlock, layers=layers, norm_layer=BatchNorm2d),
        corr_block=correlations,
        update_block=raft.UpdateBlock(motion_encoder=motion, recurrent_block=recurrent, flow_head=head),
        mask_predictor=raft.MaskPredictor(in_channels=n(128), hidden_size=n(256), multiplier=0.25),
    )


def load_raft(weights: str | None, device: torch.device) -> Any:
    """Returns a frozen RAFT large in float32.

    Args:
        weights: a file with torchvision's names, here or on the hub; None: torchvision's C_T_V1, the published
            raft-things.pth under other names.
    Raises ConfigError where the weights are missing or do not fit.
    """
    from torchvision.models.optical_flow import Raft_Large_Weights

    if weights is None:
        published = Raft_Large_Weights.C_T_V1
        try:
            given, file = published.get_state_dict(progress=False, check_hash=True), Path(published.url)
        except (OSError, RuntimeError) as error:  # no network; a download that was cut off
            raise ConfigError(f"torchvision cannot load {published.url}: {error}; a file of it may be given") from error
    else:
        file = find_file(WHAT, weights)
        given = read_weights(WHAT, file)
    if _FIRST not in given:
        raise ConfigError(f"{file} does not hold the {WHAT}: it has no {_FIRST}")
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced
        network = raft_of(len(given[_FIRST]))
    put_weights(WHAT, file, network, given)
    return network.to(device)


def write_tiny_raft(folder: Path, seed: int) -> Path:
    """Writes weights of a narrow RAFT, random but with the published names; returns their file."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        network = raft_of(TINY_WIDTH)
    randomise(network, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # else all flows are far longer than any threshold
        for parameter in network.update_block.flow_head.conv2.parameters():
            parameter.mul_(0.3)
    save_file(network.state_dict(), folder / "raft.safetensors")
    return folder / "raft.safetensors"


@torch.no_grad()
def flow_between(raft: Any, first: Tensor, second: Tensor, num_updates: int) -> Tensor:
    """Returns the flow [B, 2, h, w] in pixels from frames [B, 3, H, W] in [0, 1] to the next ones, of the same shape.

    Frames are padded on all sides, by their outermost pixels, to the next multiples h, w of 8, as the published code
    does; the flow of what was added is not cut off.
    """
    height, width = first.shape[-2:]
    below, beside = -height % STRIDE, -width % STRIDE
    edges = (beside // 2, beside - beside // 2, below // 2, below - below // 2)
    padded = (torch.nn.functional.pad(2 * frames - 1, edges, mode="replicate") for frames in (first, second))
    with torch.autocast(first.device.type, enabled=False):
        flow: Tensor = raft(*padded, num_flow_updates=num_updates)[-1]
    return flow
