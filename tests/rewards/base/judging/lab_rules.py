"""Rules of the labs twice: called directly as a reward, and behind OpenAI's protocol as the judge of `*_judge`."""

import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from mmrl.assembly.build import build, make_trainer
from mmrl.core.config import load_config
from mmrl.labs.screens.world import CLICK
from mmrl.labs.shapes.world import verify
from mmrl.media.pictures import as_tensor
from tests.rewards.base.judging.openai_server import Answering, chat

# All scores have six decimals: they lose nothing as a text.


def closeness(text: str, box: list[float]) -> float:
    """Returns 1 for a click on the centre of a box, less the farther away, 0 for no click."""
    found = CLICK.search(text)
    if found is None:
        return 0.0
    x, y = (float(number) for number in found.groups())
    squared = (x - (box[0] + box[2]) / 2) ** 2 + (y - (box[1] + box[3]) / 2) ** 2
    return round(1 / (1 + squared / 100), 6)


def likeness(image: Tensor, prompt: Any) -> float:
    """Returns the shapes lab's graded score of an image [3, 32, 32], which is rounded to 8 bits before."""
    return _graded((image * 255).round().clamp(0, 255) / 255, prompt.text)


def _graded(image: Tensor, text: str) -> float:
    contiguous = image.contiguous()[None]  # sums depend on the order in memory by a bit
    return round(float(verify(contiguous, [text]).graded[0]), 6)


def reply_by_closeness(body: Mapping[str, Any]) -> tuple[int, Any]:
    """Answers as `closeness` judges."""
    found = re.search(r"^box (.*?)\nanswer (.*)\nend$", body["messages"][-1]["content"], re.DOTALL | re.MULTILINE)
    assert found is not None, "the question of CLICKS"
    box = [float(side) for side in re.findall(r"[0-9.]+", found[1])]
    return 200, chat(f"Score: {closeness(found[2], box):.6f}")


def reply_by_likeness(body: Mapping[str, Any]) -> tuple[int, Any]:
    """Answers as `likeness` judges."""
    picture, question = body["messages"][-1]["content"]
    content = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
    found = re.search(r"^image of (.*)$", question["text"], re.MULTILINE)
    assert found is not None, "the question of IMAGES"
    return 200, chat(f"Score: {_graded(as_tensor(Image.open(io.BytesIO(content))), found[1]):.6f}")


@dataclass(frozen=True)
class Judged:
    """A lab whose rule is judged with twice."""

    config: str
    rule: str  # a function of this module
    reward: str
    question: str
    answer: Answering

    def direct(self) -> dict[str, Any]:
        """Returns the section of the rule itself."""
        return {"name": "python", "function": f"{__name__}:{self.rule}", "range": [0, 1]}

    def over_api(self, url: str, folder: Path) -> dict[str, Any]:
        """Returns the section of the judge at an address, whose prompt file is written into a folder."""
        file = folder / f"{self.rule}.yaml"
        file.write_text(json.dumps({"form": "number", "about": "a rule", "question": self.question}))
        judge = {"model": "rule", "url": url, "outage_seconds": 10, "concurrency": 8}
        return {"name": self.reward, "prompt": str(file), "judges": [judge]}


CLICKS = Judged(
    "lab/grpo", "closeness", "text_judge", "box {target.box}\nanswer {answer}\nend", reply_by_closeness
)  # fmt: skip
IMAGES = Judged("lab/flow_grpo", "likeness", "vlm_judge", "image of {prompt}", reply_by_likeness)


def trained(lab: Judged, section: Mapping[str, Any], seed: int, iterations: int, folder: Path) -> dict[str, Tensor]:
    """Returns all trained weights of a lab's plain GRPO after some iterations with one reward."""
    settings = load_config(
        lab.config,
        [
            f"seed={seed}",
            f"iterations={iterations}",
            f"rewards={json.dumps([dict(section)])}",
            "evaluation=null",
            "checkpoint.every=0",
        ],
    )
    trainer = make_trainer(settings, build(settings), folder)
    assert trainer.train()
    modules = trainer.policy.modules()
    return {f"{name}.{key}": value for name, one in modules.items() for key, value in one.state_dict().items()}


def num_different(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> int:
    """Returns how many weights differ in any bit."""
    assert first.keys() == second.keys()
    return sum(int((first[key] != second[key]).sum()) for key in first)
