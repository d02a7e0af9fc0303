"""Which model judges, here by transformers or at an address with OpenAI's protocol, and which judges the judges."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mmrl.core.checked import Checked

Combine = Literal["mean", "min", "mean_minus_std"]


@dataclass(frozen=True)
class JudgeModel(Checked):
    """One judge. With `url` the model answers there; without, transformers loads it here, and the settings of requests
    and prices count for nothing.

    The key of an address is read from an environment variable, so that it stands in no config and no log.
    """

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder; with url, the name by which it is served
    url: str | None = None  # such as https://api.openai.com/v1 or http://localhost:8000/v1; null: the model runs here
    key_variable: str = "OPENAI_API_KEY"  # environment variable with the key of the address; none is sent where unset
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0  # of what it writes; several votes need more than 0
    max_tokens: Annotated[int, Field(ge=1, le=10**6)] = 1024  # of a reply; a longer one is cut, and then has no verdict
    structured: bool = False  # whether the address is told the JSON schema of the reply
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16  # requests at the same time
    deadline_seconds: Annotated[float, Field(gt=0, lt=math.inf)] = 120.0  # for one whole reply
    # how long a question is asked again where the address is gone, busy (429) or broken (5xx)
    outage_seconds: Annotated[float, Field(ge=0, lt=math.inf)] = 300.0
    price: tuple[float, float] = (0.0, 0.0)  # of a million tokens of questions, and of replies

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url of a judge must begin with http:// or https://, got {self.url!r}")
        if min(self.price) < 0 or not all(map(math.isfinite, self.price)):
            raise ValueError(f"price must be two numbers of at least 0, got {list(self.price)}")
        if self.structured and self.url is None:
            raise ValueError("structured goes with a url: a model that runs here is told no schema")

    @property
    def identity(self) -> str:
        """Returns what its replies depend on beside the question."""
        return f"{self.model} {self.temperature} {self.max_tokens} {self.structured}"


@dataclass(frozen=True)
class MetaJudge(Checked):
    """A model that judges what the judges wrote; of the votes on a question those that it trusts most count.

    The meta reward model of Liu et al. 2025, "Inference-Time Scaling for Generalist Reward Modeling", arXiv 2504.02495.
    It reads the question and one reply at a time, and P(yes) of its verdict is its trust in the reply.
    """

    judge: JudgeModel  # one that is trained to tell right judgements from wrong ones, or any that can read them
    prompt: str = "judgement_correct"  # what it is asked, a prompt file of the form yes_no
    kept: Annotated[int, Field(ge=1)] | None = None  # votes that count; null: half of all, as in the paper
