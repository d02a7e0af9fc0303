"""The votes of people as a reward, for outputs that were voted on."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, Placement, RewardBatch
from mmrl.core.human_votes import Shown, Vote, pixel_digest, question_digest, read_votes, text_digest


@dataclass
class Human(Checked):
    """(wins + ties / 2 + smoothing) / (comparisons + 2 smoothing), in [0, 1], by the votes that `mmrl vote` stored.

    Laplace's rule of succession for two outcomes (smoothing 1): an output that won its only comparison scores 2/3, so
    few votes count less than many. An output is known by its pixels in 8 bits or its text, together with its prompt and
    the prompt's images; all voters count alike. A chosen output of a grid wins against each that is not chosen, and
    those that stand alike are not compared; a tie of a pair is half a win for both.

    It is for outputs that people voted on: `mmrl score`, `mmrl judge agree`, and runs on offline outputs. Another
    output, such as a sample of a run that trains, has no votes and cannot be judged, unless `default` scores it. Videos
    are known with all their frames alone.

    Raises ValueError for an output without votes, where there is no default.
    """

    source: ClassVar[str] = "the votes of people; Laplace's rule of succession"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})  # or videos, or texts
    batch_size: ClassVar[int | None] = None

    votes: str  # the file that `mmrl vote` wrote
    of: Literal["images", "videos", "texts"] = "images"  # what is judged
    smoothing: Annotated[float, Field(ge=0, lt=math.inf)] = 1.0  # wins and losses that every output begins with
    default: Annotated[float, Field(ge=0, le=1)] | None = None  # of an output without votes; null: it is not judged
    _rates: dict[tuple[str, str], float] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of != "images":
            object.__setattr__(self, "needs", frozenset({self.of, "model"}))  # of this one, not of the class

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward with one vote, written to `folder`; other outputs score 1/2, or the default."""
        folder.mkdir(parents=True, exist_ok=True)
        kind: Any = {"images": "image", "videos": "video", "texts": "text"}[self.of]
        shown = tuple(Shown(str(place), text_digest(f"{seed} {place}"), "tiny") for place in range(2))
        question = question_digest("tiny", ())
        one = Vote("tiny", "pairs", kind, "tiny", (), (), question, shown, (0,), 1.0, "nobody", "2026-01-01")
        (folder / "votes.jsonl").write_bytes(one.line())
        default = 0.5 if self.default is None else self.default
        return replace(self, votes=str(folder / "votes.jsonl"), default=default)

    def prepare(self, placement: Placement) -> None:
        """Reads the votes. Raises ConfigError where they cannot be read, or compare nothing of the kind."""
        path = Path(self.votes).expanduser()
        kind = self.of.removesuffix("s")
        votes = [vote for vote in read_votes(path) if vote.kind == kind]
        self._rates = win_rates(votes, self.smoothing)
        if not self._rates:
            raise ConfigError(f"reward 'human': {path} compares no {self.of}; `of` says what is judged")

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert self._rates is not None, "prepare comes before score"
        questions = [question_digest(prompt.text, prompt.media) for prompt in batch.prompts]
        found = [self._rates.get(key, self.default) for key in zip(questions, self._digests(batch), strict=True)]
        for number, rate in enumerate(found):
            if rate is None:
                raise ValueError(
                    f"nobody voted on this output for the prompt {batch.prompts[number].text!r:.80}; {self.votes} "
                    "holds other ones (`default` scores outputs without votes)"
                )
        return torch.tensor(found, dtype=torch.float32)

    def _digests(self, batch: RewardBatch) -> list[str]:
        outputs = batch.outputs
        if self.of == "texts":
            assert outputs.texts is not None, "scoring checks needs"
            return [text_digest(text) for text in outputs.texts]
        media = outputs.images if self.of == "images" else outputs.videos
        assert media is not None, "scoring checks needs"
        return [pixel_digest(one) for one in media]


def win_rates(votes: list[Vote], smoothing: float) -> dict[tuple[str, str], float]:
    """Returns the smoothed win rate of each output that was compared, by the digests of its prompt and of itself."""
    points: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for vote in votes:
        keys = [(vote.question, one.digest) for one in vote.shown]
        if vote.form == "pairs" and vote.is_tie:
            for key in keys:
                points[key].append(0.5)
        for winner, loser in vote.pairs():
            points[keys[winner]].append(1.0)
            points[keys[loser]].append(0.0)
    return {key: (sum(won) + smoothing) / (len(won) + 2 * smoothing) for key, won in points.items()}
