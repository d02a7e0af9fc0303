"""Rows that bring outputs: what each form of them means, and which are bad, by file and line."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.core.config import DatasetSettings
from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.media.pictures import StoredPicture
from mmrl.plans.offline import roll_out
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.samplers.given import Given
from mmrl.system.errors import ConfigError

SAID = [{"role": "assistant", "content": "yes"}]


def read(folder: Path, row: Any, layout: str, **settings: Any) -> Prompt:
    """The prompt of one row, in a folder with the images a.png, b.png and cut.png, which is not whole."""
    for name, colour in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (8, 8), colour).save(folder / name)
    Image.effect_noise((64, 64), 50).save(folder / "cut.png")
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:600])
    (folder / "rows.jsonl").write_text(row if isinstance(row, str) else json.dumps({"prompt": "p"} | row), "utf-8")
    (made,) = load_dataset_prompts(DatasetSettings(path=str(folder / "rows.jsonl"), layout=layout, **settings))
    return made


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"rejected": "a.png"}, "it has no field 'chosen'; its fields are prompt, rejected"),
        ({"chosen": None, "rejected": "a.png"}, "its field 'chosen' is null"),
        ({"chosen": "a.png", "rejected": None}, "its field 'rejected' is null"),
        ({"output": "a.png", "rejected": "b.png"}, "it has 'rejected' and 'output'; a row holds a pair, or outputs"),
        ({"chosen": "a.png", "rejected": "b.png", "score": 1}, "it has 'chosen' and 'score'; a row holds a pair"),
        ({"outputs": ["a.png"], "output": "b.png"}, "it has 'outputs' and 'output'; one of the two is allowed"),
        ({"output": "a.png", "scores": [1], "score": 0}, "it has 'scores' and 'score'; one of the two is allowed"),
        ({"output": "a.png", "score": None}, "its field 'score' is null; without that field each output scores 1"),
        ({"chosen": None, "score": 1}, "it has no field 'output'"),
        ({"outputs": None}, "its field 'outputs' is null"),
        ({"output": "a.png", "score": 10**400}, "a score must be a finite number of at most 1e.18, got 1000"),
        ({"output": "a.png", "score": 1e39}, "a score must be a finite number of at most 1e.18, got 1e.39"),
        ({"output": "a.png", "score": "NaN"}, "a score must be a finite number of at most 1e.18, got nan"),
        ({"output": "a.png", "score": "good"}, "a score must be a finite number of at most 1e.18, got 'good'"),
        ({"outputs": ["a.png", "b.png"], "scores": [1]}, "it has 2 outputs and 1 scores; each output needs one"),
        ({"output": "c.png"}, "there is no image file 'c.png'"),
    ],
)
def test_a_row_without_clear_outputs_is_a_bad_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rows\.jsonl, line 1: {message}"):
        read(tmp_path, row, "given_images")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"output": [{"role": "user", "content": "hm"}]}, "must end with one of the assistant, got one of the user"),
        (
            {"output": [{"role": "assistant", "content": [{"type": "image"}]}]},
            "the answer in 'output 1' holds an image",
        ),
        ({"output": [{"role": "assistant"}]}, "a message of 'output 1' needs a role"),
        ('{"prompt": "p", "output": "\\ud800"}', "the field 'output 1' is no Unicode text"),
        ({"output": ""}, "the field 'output 1' must be a text, got ''"),
    ],
)
def test_an_answer_that_is_no_text_is_a_bad_row(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rows\.jsonl, line 1: .*{message}"):
        read(tmp_path, row, "given_answers")


@pytest.mark.parametrize(
    ("row", "outputs", "scores"),
    [
        ({"chosen": SAID, "rejected": [{"role": "user", "content": "p"}, *SAID]}, ("yes", "yes"), (1.0, 0.0)),
        ({"output": [{"role": "assistant", "content": [{"type": "text", "text": "yes"}]}]}, ("yes",), (1.0,)),
        ({"output": json.dumps(SAID)}, ("yes",), (1.0,)),
        ({"output": '[{"bbox_2d": [1, 2, 3, 4]}]'}, ('[{"bbox_2d": [1, 2, 3, 4]}]',), (1.0,)),
        ({"output": "[1, 2]", "score": "0.5"}, ("[1, 2]",), (0.5,)),
        ({"outputs": '["x", "y"]', "scores": "[0, 2]"}, ("x", "y"), (0.0, 2.0)),
        ({"outputs": ["x", "y"], "chosen": None, "rejected": None}, ("x", "y"), (1.0, 1.0)),
        ({"prompt": [{"role": "user", "content": "p"}, *SAID], "chosen": None, "rejected": None}, ("yes",), (1.0,)),
        ({"output": "x", "score": 3, "scores": None}, ("x",), (3.0,)),
    ],
)
def test_answers_are_texts_messages_or_the_cells_of_tables(
    tmp_path: Path, row: dict[str, Any], outputs: tuple[str, ...], scores: tuple[float, ...]
) -> None:
    target = read(tmp_path, row, "given_answers").target
    assert (target["given"], target["given_scores"]) == (outputs, scores)


def test_an_empty_score_of_a_table_is_no_score(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,output,score\np,x,0.25\np,y,\n", "utf-8")
    with pytest.raises(ConfigError, match=r"rows\.csv, line 3: its field 'score' is null"):
        load_dataset_prompts(DatasetSettings(path=str(tmp_path / "rows.csv"), layout="given_answers"))
    (tmp_path / "rows.csv").write_text("prompt,output,score\np,x,0.25\n", "utf-8")
    (made,) = load_dataset_prompts(DatasetSettings(path=str(tmp_path / "rows.csv"), layout="given_answers"))
    assert made.target["given_scores"] == (0.25,)


def test_a_metadata_table_with_an_empty_image_has_that_of_its_file_name(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "metadata.csv").write_text("file_name,prompt,image\na.png,p,\n", "utf-8")
    (made,) = load_dataset_prompts(DatasetSettings(path=str(tmp_path)))
    assert [picture.size for picture in made.media] == [(8, 8)]


def test_given_images_are_opened_whole_where_that_is_asked(tmp_path: Path) -> None:
    row = {"chosen": "a.png", "rejected": "cut.png"}
    assert len(read(tmp_path, row, "given_images").target["given"]) == 2, "its header is whole"
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1: cannot read the image cut\.png"):
        read(tmp_path, row, "given_images", decode=True)


class OtherOrder:
    """A policy of two sizes: its rollouts hold the last prompt's samples first."""

    sample_kind, height, width, makes = "latents", 2, 2, frozenset({"images"})

    def offline(self, prompts: Sequence[Prompt], outputs: Outputs, keys: Sequence[GroupKey]) -> Rollout:
        rows = torch.tensor([2, 3, 0, 1])
        alone = [outputs.select(row[None]) for row in rows]
        return Rollout(
            prompts=tuple(prompts[row] for row in rows),
            keys=tuple(keys[row] for row in rows),
            prompt=torch.arange(4),
            group=torch.tensor([0, 0, 1, 1]),
            episode=torch.arange(4),
            turn=torch.zeros(4, dtype=torch.int64),
            outputs=Outputs(each=tuple(alone)),
            blocks=(DecisionBlock.none(4),),
            trace=None,
            num_calls=0,
        )


def test_outputs_keep_their_scores_where_a_policy_sorts_groups_by_size() -> None:
    grey = [Image.new("RGB", (2, 2), (level,) * 3) for level in (0, 51, 102, 153)]
    pictures = [StoredPicture(str(n), content=png(image)) for n, image in enumerate(grey)]
    prompts = [
        Prompt("a", target={"given": tuple(pictures[:2]), "given_scores": (0.0, 1.0)}),
        Prompt("b", target={"given": tuple(pictures[2:]), "given_scores": (1.0, 0.0)}),
    ]
    policy: Any = OtherOrder()
    plans = [Given().plan(policy, key, 2) for key in (GroupKey(0, 0, 0), GroupKey(0, 0, 1))]
    rollout = roll_out(policy, prompts, plans, [GroupKey(0, 0, 0), GroupKey(0, 0, 1)])
    whole = rollout.outputs.select(torch.arange(4))
    assert whole.images is not None and whole.given is not None
    assert whole.given.tolist() == [0, 1, 1, 0]
    torch.testing.assert_close(whole.images[:, 0, 0, 0], torch.tensor([102, 153, 51, 0]) / 255)


def png(image: Image.Image) -> bytes:
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()
