"""A tiny twin of ImageReward: the published names and layout, small sizes, random weights, a tokenizer of letters."""

from pathlib import Path

import torch

from .blip import ImageRewardNetwork, published_name
from .tiny import randomise

PIXELS, PATCH, WIDTH, LAYERS = 32, 8, 128, 2  # two attention heads
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"-()"


def write_tiny_image_reward(folder: Path, seed: int) -> Path:
    """Writes checkpoint and tokenizer; returns the checkpoint's file."""
    from transformers import BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
    }
    image = {**tower, "image_size": PIXELS, "patch_size": PATCH}
    text = {**tower, "encoder_hidden_size": WIDTH, "vocab_size": len(words) + 2, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ImageRewardNetwork(image, text)
    for part in (network.image, network.text):  # the head stays as it is: a larger one would enlarge rounding errors
        randomise(part, torch.Generator().manual_seed(seed))
    weights = {published_name(name): value for name, value in network.state_dict().items()}
    torch.save(weights, folder / "ImageReward.pt")
    return folder / "ImageReward.pt"
