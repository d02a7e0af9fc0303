"""A real model behind a judge's address gives the verdicts that it gives here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import as_tensor
from mmrl.scoring.standalone import judge, scorer_of
from tests.rewards.base.judging.lab_judge import NO, YES, answering, examples, question_of, taught
from tests.rewards.base.judging.openai_server import serving

FORMS: dict[str, dict[str, Any]] = {
    "first word": {"form": "yes_no", "words": [YES, NO]},
    "written": {"form": "number", "scale": [0, 1]},
}


@pytest.mark.slow  # teaches a model for two minutes
def test_a_lab_s_model_judges_at_an_address_as_it_does_here(tmp_path: Path) -> None:
    model = str(taught(tmp_path / "model", steps=100))
    images, names, labels = examples(96, seed=0)
    prompts = [Prompt(name) for name in names]
    outputs = Outputs(images=torch.stack([as_tensor(image) for image in images]))
    scores = {}
    with serving(answering(Path(model))) as served:
        for form, content in FORMS.items():
            file = tmp_path / f"{form}.yaml"
            file.write_text(
                json.dumps({"about": "is it there", "question": question_of("{prompt}"), "ending": "", **content})
            )
            for where, judging in (("here", {"model": model}), ("there", {"model": "lab", "url": served.url})):
                section = {"name": "vlm_judge", "prompt": str(file), "judges": [{**judging, "max_tokens": 3}]}
                found = judge(scorer_of([section]), prompts, outputs)
                assert found.first_failures == (None,), form
                scores[form, where] = found.scores.values[:, 0]
    assert len(served.bodies) == 2 * len(prompts)
    torch.testing.assert_close(scores["first word", "there"], scores["first word", "here"], rtol=0, atol=1e-5)
    assert torch.equal(scores["written", "there"], scores["written", "here"])
    assert set(scores["written", "here"].tolist()) == {0.0, 1.0}
    is_right = (scores["first word", "there"] > 0.5) == torch.tensor(labels)
    assert is_right.float().mean() > 0.65  # it looks at the windows
