"""A network of two layers with a head outside of it, and what its gradients are on one process."""

import torch
from torch import Tensor, nn

from mmrl.core.weights import whole

OF_BOTH = ([[1, 2, 3]], [[3, 4, 5], [0, 0, 6]])  # tokens of the first process and of the second


class Body(nn.Module):
    """Embedding and layers; sizes that two does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden).tanh()
        return hidden


class TwoLayers(nn.Module):
    """The same numbers each time."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body = Body()
            self.head = nn.Linear(5, 7, bias=False)
        if is_tied:
            self.head.weight = self.body.embedding.weight


def loss_of(network: TwoLayers, tokens: Tensor) -> Tensor:
    logits: Tensor = network.body(tokens) @ whole(network.head.weight).T
    return logits.logsumexp(-1).sum()


def expected_gradients(is_tied: bool) -> dict[str, Tensor]:
    """Of the loss on the tokens of both processes."""
    network = TwoLayers(is_tied)
    for tokens in OF_BOTH:
        loss_of(network, torch.tensor(tokens)).backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
