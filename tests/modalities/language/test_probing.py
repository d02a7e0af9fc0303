"""What a model of an untested type is found to need: masks, joining of media, the output layer, the chat template."""

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError
from mmrl.modalities.encoding.inputs import axis_of, join_media
from mmrl.modalities.encoding.network import decoder_name, is_whole, network_of, vision_parameters, vision_parts
from mmrl.modalities.language.chat_template import fault_of_template
from mmrl.modalities.language.probing import _pairs, probed_head
from mmrl.modalities.language.sharing import compared_tensors
from mmrl.modalities.tokens.backbone import Answers
from mmrl.modalities.tokens.log_probs import OutputHead
from mmrl.modalities.tokens.one_at_a_time import hidden_one_at_a_time
from mmrl.modalities.tokens.prefix_packing import runs_of
from mmrl.parsing.coordinates import Canvas
from tests import vision_twins
from tests.parameters import in_one_test


def test_the_axis_is_the_one_along_which_two_make_both() -> None:
    one, two = torch.arange(6.0).view(1, 2, 3), torch.arange(8.0).view(1, 2, 4)
    assert axis_of(one, two, torch.cat([one, two], 2)) == 2
    padded = torch.nn.functional.pad(one, (0, 1))
    assert axis_of(one, two, torch.cat([padded, two])) == 0
    assert axis_of(one, two, torch.cat([padded, two]) + 1) is None  # counted from the first prompt
    joined = join_media([{"a": one}, {"a": two}], {"a": 2})
    assert torch.equal(joined["a"], torch.cat([one, two], 2))


def test_runs_are_numbered_in_order() -> None:
    assert runs_of(torch.tensor([[0, 0, 1, 1, 0], [1, 2, 2, 2, 2]])).tolist() == [[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]]


@in_one_test(
    ("rule", "pairs"),
    [
        (lambda query, key, kinds, run: key <= query, set()),
        (lambda query, key, kinds, run: (key <= query) | (kinds & (run[:, None] == run)), {(1, 1, True)}),
        (lambda query, key, kinds, run: (key <= query) | kinds, {(1, 1, True), (1, 1, False)}),
        (
            lambda query, key, kinds, run: (key <= query) | ~kinds,
            {(0, 0, False), (0, 0, True), (0, 1, False), (1, 0, False)},
        ),
    ],
)  # fmt: skip
def test_what_is_seen_ahead_is_read_from_a_mask(rule: Callable[..., Tensor], pairs: set[tuple[int, int, bool]]) -> None:
    kinds = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 0])
    query, key = torch.arange(9)[:, None], torch.arange(9)
    both = (kinds[:, None] == 1) & (kinds == 1)
    assert _pairs([(rule(query, key, both, runs_of(kinds)), kinds)], 1) == pairs


def test_what_is_seen_beyond_a_window_is_read_below_its_diagonal() -> None:
    kinds = torch.tensor([1, 1, 1, 1, 0, 0])
    query, key = torch.arange(6)[:, None], torch.arange(6)
    near = (key <= query) & (query - key < 2)
    of_image = (kinds[:, None] == 1) & (kinds == 1)
    assert _pairs([(near | of_image, kinds)], -2) == {(1, 1, True)}
    assert _pairs([(near, kinds)], -2) == set()


def test_one_at_a_time_gives_the_states_in_the_order_of_the_answers() -> None:
    prompt, length = torch.tensor([1, 0, 1]), torch.tensor([2, 3, 1])
    answers = Answers(prompt, torch.tensor([[1, 2, 0], [3, 4, 5], [6, 0, 0]]), length)
    seen: list[tuple[list[Any], int]] = []

    def states(_backbone: Any, prompts: Any, own: Answers) -> Tensor:
        seen.append((list(prompts), len(own.prompt)))
        return own.tokens[own.is_token][:, None].float()

    backbone: Any = None
    for by_answer, calls in ((False, [(["a"], 1), (["b"], 2)]), (True, [(["b"], 1), (["a"], 1), (["b"], 1)])):
        seen.clear()
        prompts: Any = ["a", "b"]
        found = hidden_one_at_a_time(states, backbone, prompts, answers, by_answer=by_answer)
        assert found[:, 0].tolist() == [1, 2, 3, 4, 5, 6] and seen == calls


class Language(nn.Module):
    """A language model with its output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = nn.Linear(2, 2), nn.Linear(2, 3, bias=False)


class Whole(nn.Module):
    """A model as Llama 4's class is built: its language model has the output layer, and `get_decoder` returns both."""

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.language_model = nn.Linear(2, 2), Language()

    def get_decoder(self) -> nn.Module:
        return self.language_model

    def get_output_embeddings(self) -> nn.Module:
        return self.language_model.lm_head

    def forward(self, hidden: Tensor) -> Any:
        return SimpleNamespace(logits=self.language_model.lm_head(self.language_model.model(hidden)))


def test_a_model_without_a_network_of_its_own_is_called_without_its_output_layer() -> None:
    model = Whole()
    assert is_whole(model) and decoder_name(model) == "language_model.model" and vision_parts(model) == ["vision"]
    assert vision_parameters(model) == {"vision.weight", "vision.bias"}
    hidden = torch.randn(1, 2)
    found = network_of(model)(hidden=hidden).last_hidden_state
    torch.testing.assert_close(found, model.language_model.model(hidden))
    assert isinstance(model.language_model.lm_head, nn.Linear)


def test_the_scale_of_logits_is_what_the_class_computes(caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.Linear(4, 7, bias=False)

    class Model(nn.Module):
        config = SimpleNamespace(model_type="new")
        by: Callable[[Tensor], Tensor] = staticmethod(lambda raw: raw)

        def get_output_embeddings(self) -> nn.Module:
            return layer

        def forward(self, hidden: Tensor, use_cache: bool) -> Any:
            return SimpleNamespace(logits=type(self).by(layer(hidden)))

    given, declared = {"hidden": torch.randn(1, 3, 4)}, OutputHead(layer.weight.detach(), None, 0.25)
    with caplog.at_level(logging.WARNING):
        assert probed_head(Model(), declared, given).scale == 1.0
    assert "has a scale of logits of 0.25, and transformers computes with 1;" in caplog.text
    Model.by = staticmethod(lambda raw: raw * 0.25)
    assert probed_head(Model(), declared, given) is declared
    Model.by = staticmethod(lambda raw: 0.3 * torch.tanh(raw / 0.3))
    capped = replace(declared, scale=1.0, softcap=0.3)
    assert probed_head(Model(), capped, given) is capped
    with pytest.raises(ConfigError, match="logits of 'new' are neither its output layer times a number nor"):
        probed_head(Model(), declared, given)


def test_gradients_are_compared_of_a_few_tensors_over_the_whole_network() -> None:
    trained = {f"{number}.{kind}": torch.zeros(1) for number in range(50) for kind in ("lora_A", "lora_B", "bias")}
    found = compared_tensors(trained)
    first, *_, last = found
    assert (len(found), first, last) == (8, "0.lora_B", "49.lora_B")
    assert list(compared_tensors({"a.bias": torch.zeros(1)})) == ["a.bias"]


def test_a_chat_template_is_tried_on_an_answer() -> None:
    encoder = vision_twins.policy("qwen2_5_vl").encoder
    assert fault_of_template(encoder) is None

    def fault(change: Callable[[str], str]) -> str | None:
        processor = encoder.processor
        before = processor.chat_template
        try:
            processor.chat_template = change(before)
            return fault_of_template(encoder)
        finally:
            processor.chat_template = before

    assert fault(lambda text: text.replace("add_generation_prompt", "false")) is not None
    moved = fault(lambda text: text + "{% if add_generation_prompt %}<think>{% endif %}")
    assert moved == "a conversation with an answer does not begin with the prompt for it"


def test_coordinates_in_an_unknown_unit_are_asked_of_the_user() -> None:
    canvas = Canvas((40, 30), (56, 28), None)
    for use in (lambda: canvas.point_to_original((1, 2)), lambda: canvas.range_in_words):
        with pytest.raises(ValueError, match=r"^modality\.coordinates: it is not known in which unit"):
            use()
