"""The head that the aesthetic predictor and ImageReward share."""

from torch import Tensor, nn


class Head(nn.Module):
    """Linear layers width-1024-128-64-16-1 without activations between them; the published names included."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 1024),
            nn.Dropout(0.2),
            nn.Linear(1024, 128),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.Linear(16, 1),
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        """Scores [B] of embeddings [B, width]."""
        scores: Tensor = self.layers(embeddings)
        return scores.squeeze(1)
