"""UnifiedReward: one trained judge of pictures, videos and answers about pictures, by points or by pairs."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mmrl.core.contracts import License

from ..base.judging.questions import Reply
from ..base.judging.settings import JudgeModel
from .vlm_judge import VlmJudge

Task = Literal["image", "video", "answer"]
PROMPTS: dict[tuple[Task, bool], str] = {  # by the task, and whether pairs are compared
    ("image", False): "unified_reward",
    ("video", False): "unified_reward_video",
    ("answer", False): "unified_reward_answer",
    ("image", True): "unified_reward_think",
    ("video", True): "unified_reward_think_video",
    ("answer", True): "unified_reward_think_answer",
}
OF: dict[Task, Literal["images", "videos", "texts"]] = {"image": "images", "video": "videos", "answer": "texts"}
POINTS, PAIRS = "CodeGoat24/UnifiedReward-qwen-7b", "CodeGoat24/UnifiedReward-Think-qwen-7b"
_ANSWER = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL | re.IGNORECASE)
_BETTER = re.compile(r"\s+(?:is|are)\s+better\.?$", re.IGNORECASE)


@dataclass
class UnifiedReward(VlmJudge):
    """UnifiedReward's points, as (points - worst) / (best - worst), or with `think` a win rate in the group; in [0, 1].

    Wang et al. 2025, arXiv 2503.05236 (points), arXiv 2505.03318 (UnifiedReward-Think, which compares two after a chain
    of thought), github.com/CodeGoat24/UnifiedReward. It is `vlm_judge` with this judge and, by `task`, a prompt file:
      image    points 1 to 5 for the fit to the prompt and the looks
      video    points 1 to 10, by 8 frames
      answer   points 0 to 100, with the image that the question is about
    A reply ends with `Final Score: 4`, as published, or with `think` as `<answer>Image 1 is better</answer>`, also
    `Better: Image 1`. Each pair is asked in both orders. The questions are ours, in the published scales and forms;
    where the words stand that the judge was trained with, the prompt files say. The default weights are the Qwen2.5-VL
    versions; the first one is a LLaVA-OneVision in the form of LLaVA's own code, which transformers does not load.

    `of` and `condition_image` follow from `task`. Raises ValueError for settings that do not go together.
    """

    prompt: str = ""  # empty: the prompt file of the task
    judges: tuple[JudgeModel, ...] = ()  # each is asked every question; empty: UnifiedReward's, run here
    task: Task = "image"  # what is judged, and how: pictures, videos, or answers about the prompt's first image
    think: bool = False  # whether pairs are compared with reasons, by UnifiedReward-Think

    # or videos, or texts and the prompt's image; a service where a judge has a url
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    source: ClassVar[str] = "Wang et al. 2025 (UnifiedReward), arXiv 2503.05236, arXiv 2505.03318"
    license: ClassVar[License] = License("MIT", commercial=True)  # cards of CodeGoat24/UnifiedReward-7b and -qwen-32b

    def __post_init__(self) -> None:
        if self.of not in ("images", OF[self.task]):
            raise ValueError(f"of follows from task: {OF[self.task]} for {self.task}, got {self.of}")
        self.prompt = self.prompt or PROMPTS[self.task, self.think]
        self.judges = self.judges or (JudgeModel(PAIRS if self.think else POINTS, max_tokens=4096),)
        self.of = OF[self.task]
        self.condition_image = self.task == "answer"
        super().__post_init__()

    def verdict(self, reply: Reply) -> Any:
        """Returns what stands in the last tag `answer`, without "is better", or else as every judge's verdict."""
        found = _ANSWER.findall(reply.text)
        return _BETTER.sub("", found[-1]) if found else super().verdict(reply)
