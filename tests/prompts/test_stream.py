"""Prompt files, and the order in which a run draws from them."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.config import DatasetSettings, PromptSettings, check_config, load_config, to_yaml
from mmrl.core.data import Prompt
from mmrl.core.keys import generator
from mmrl.labs.shapes import world
from mmrl.prompts.datasets import write_synthetic
from mmrl.prompts.stream import PromptStream, load_prompts, mixture
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test
from tests.vision_twins import picture


def prompt_set(name: str, size: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(f"{name}{number}") for number in range(size))


def next_texts(stream: PromptStream, count: int) -> list[str]:
    return [prompt.text for _, prompt in stream.take(count)]


def test_a_lab_gives_its_first_prompts() -> None:
    every = load_prompts("lab:shapes/train")
    assert load_prompts("lab:shapes/train[:1]") == every[:1] and load_prompts("lab:shapes/train[:5]") == every[:5]
    with pytest.raises(ConfigError, match="behind a split stands nothing, or"):
        load_prompts("lab:shapes/train[:0]")


def test_each_line_of_a_text_file_is_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffa red circle  \r\n\n  two lines?\u2028no\n\tcaf\u00e9".encode())
    assert [prompt.text for prompt in load_prompts(str(path))] == ["a red circle", "two lines?\u2028no", "caf\u00e9"]


def test_the_other_fields_of_a_json_row_are_the_target(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "what is this?", "answer": "a cat", "box": [1, 2, 3, 4]}, {"prompt": "one\u2028two\u0085three"}]
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    first, second = load_prompts(str(path))
    assert first == Prompt("what is this?", target={"answer": "a cat", "box": [1, 2, 3, 4]})
    assert second == Prompt("one\u2028two\u0085three")


@pytest.mark.parametrize("row", ["[1]", "3", '{"prompt": 3}', '{"prompt": " "}', '{"text": "a"}', "{", "a red circle"])
def test_a_row_without_a_prompt_is_named_by_its_line(tmp_path: Path, row: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{row}\n')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl, line 3 "):
        load_prompts(str(path))


def test_a_row_with_images_is_not_read_as_a_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "images": []}\n{"prompt": "b", "images": ["b.png"]}\n')
    with pytest.raises(
        ConfigError, match=r"line 2 has images; give such a file as a section: {path: .*layout: columns}"
    ):
        load_prompts(str(path))


def test_a_file_of_the_working_folder_is_taken_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = load_prompts("prompts/compositions_train.txt")
    assert len(shipped) > 10
    Path("prompts").mkdir()
    Path("prompts/compositions_train.txt").write_text("mine")
    assert load_prompts("prompts/compositions_train.txt") == (Prompt("mine"),)


def test_a_folder_or_nothing_is_no_prompt_file(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    for source in ("", str(tmp_path), str(tmp_path / "folder.txt"), str(tmp_path / "none.txt")):
        with pytest.raises(ConfigError, match="prompts: "):
            load_prompts(source)


def test_a_lab_has_prompts_of_its_own() -> None:
    train, held_out = load_prompts("lab:shapes/train"), load_prompts("lab:shapes/held_out")
    assert [prompt.text for prompt in train] == world.prompts("train")
    assert not {prompt.text for prompt in train} & {prompt.text for prompt in held_out}
    assert load_prompts("lab:shapes") == train
    for source in ("lab:shapes/test", "lab:shape/train"):
        with pytest.raises(ConfigError, match="prompts: 'lab:shape"):
            load_prompts(source)


def test_every_pass_draws_each_prompt_once_in_an_order_of_its_own() -> None:
    stream = PromptStream([prompt_set("a", 20)], [1.0], seed=0)
    first, second = next_texts(stream, 20), next_texts(stream, 20)
    assert sorted(first) == sorted(second) == sorted(prompt.text for prompt in prompt_set("a", 20))
    assert first != second
    assert first != [prompt.text for prompt in prompt_set("a", 20)]


def test_draws_are_numbered_and_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    sets, weights = [prompt_set("a", 5), prompt_set("b", 3)], [1.0, 2.0]
    whole = PromptStream(sets, weights, seed=4).take(30)
    assert [number for number, _ in whole] == list(range(30))
    stream = PromptStream(sets, weights, seed=4)
    assert [draw for count in (1, 7, 0, 12, 10) for draw in stream.take(count)] == whole
    assert PromptStream(sets, weights, seed=5).take(30) != whole


@pytest.mark.slow
def test_sets_are_drawn_by_their_weights() -> None:
    stream = PromptStream([prompt_set("a", 7), prompt_set("b", 5)], [1.0, 3.0], seed=0)
    counts = Counter(text[0] for text in next_texts(stream, 2000))
    assert abs(counts["b"] / 2000 - 0.75) < 4 * (0.75 * 0.25 / 2000) ** 0.5


def test_a_restored_stream_goes_on_where_it_stopped() -> None:
    sets, weights = [prompt_set("a", 5), prompt_set("b", 3)], [1.0, 2.0]
    stream = PromptStream(sets, weights, seed=0)
    stream.take(13)
    state = json.loads(json.dumps(stream.state_dict()))
    expected = stream.take(20)
    again = PromptStream(sets, weights, seed=0)
    again.load_state_dict(state)
    assert again.num_taken == 13
    assert again.take(20) == expected


def test_the_order_of_a_pass_is_that_of_its_own_generator() -> None:
    stream = PromptStream([prompt_set("a", 9)], [1.0], seed=3)
    for turn in range(3):
        order = torch.randperm(9, generator=generator(3, "order", 0, turn)).tolist()
        assert next_texts(stream, 9) == [f"a{number}" for number in order]


def test_the_order_of_a_mixture_does_not_depend_on_the_kind_of_its_sources(tmp_path: Path) -> None:
    made = write_synthetic("columns", tmp_path, 6, 0)
    questions = [prompt.text for prompt in load_prompts(made)]
    (tmp_path / "same.txt").write_text("\n".join(questions))
    orders = []
    for first in (made, str(tmp_path / "same.txt")):
        settings = PromptSettings.model_validate(
            {"train": [{"source": first, "weight": 2}, {"source": "lab:shapes/train"}]}
        )
        sources = mixture(settings.train)
        assert [weight for _, weight in sources] == [2.0, 1.0]
        stream = PromptStream([load_prompts(source) for source, _ in sources], [weight for _, weight in sources], 0)
        orders.append(next_texts(stream, 40))
        state = stream.state_dict()
        assert (state["counts"], state["num_unread"]) == (stream.counts, 0)
    assert orders[0] == orders[1]
    assert set(questions) & set(orders[0]) and set(world.prompts("train")) & set(orders[0])


def test_a_stream_of_a_data_set_goes_on_where_it_stopped(tmp_path: Path) -> None:
    made = write_synthetic("screenspot_hf", tmp_path, 7, 0)
    stream = PromptStream([load_prompts(made)], [1.0], seed=0)
    stream.take(10)
    state = json.loads(json.dumps(stream.state_dict()))
    again = PromptStream([load_prompts(made)], [1.0], seed=0)
    again.load_state_dict(state)
    for (number, expected), (other, prompt) in zip(stream.take(10), again.take(10), strict=True):
        assert (number, expected.text, expected.target) == (other, prompt.text, prompt.target)
        assert expected.media == prompt.media


@pytest.mark.slow
def test_a_source_is_a_text_a_section_or_a_weighted_list() -> None:
    section = {"path": ["a.jsonl", "b.jsonl"], "layout": "trl", "columns": {"prompt": "q"}, "limit": 3}
    for train in ("a.txt", section, [{"source": section}, {"source": "a.txt", "weight": 2}]):
        config = check_config(
            load_config("quickstart").model_dump() | {"prompts": {"train": train, "held_out": section}}
        )
        assert check_config(json.loads(config.model_dump_json())) == config
        assert isinstance(config.prompts.held_out, DatasetSettings) and to_yaml(config)


@pytest.mark.slow
@in_one_test(
    ("train", "message"),
    [
        (
            {"pth": "a"},
            "config.prompts.train.path is needed\nconfig.prompts.train has no field 'pth' .did you mean 'path'",
        ),
        ({"path": 3}, "config.prompts.train.path: should be a valid string"),
        ({"path": "a", "bad_rows": "keep"}, "config.prompts.train.bad_rows: should be 'fail' or 'skip', got 'keep'"),
        ({"path": "a", "limit": True}, "config.prompts.train.limit: should be a number, got True"),
        ({"path": "a", "limit": 0}, "config.prompts.train.limit: should be greater than or equal to 1"),
        ({"path": "a", "template": "x"}, "config.prompts.train.template: needs {prompt} once"),
        ([{"source": {"path": "a", "layuot": "b"}}], "config.prompts.train.0.source has no field 'layuot'"),
        ([{"source": 3}], "config.prompts.train.0.source: should be a valid string, got 3"),
        (3, "config.prompts.train: should be a valid string, got 3"),
    ],
)
def test_a_wrong_source_is_one_clear_error(train: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load_config("quickstart").model_dump() | {"prompts": {"train": train}})


def test_a_lab_may_ask_about_pictures_that_are_drawn_when_they_are_looked_at() -> None:
    first = load_prompts("lab:screens/box_held_out")[0]
    (picture,) = first.media
    assert first.text.startswith("box of the ") and len(first.target["box"]) == 4
    assert picture.load().size == (112, 112)
    with pytest.raises(ConfigError, match=r"'lab:screens/box': no split 'box' \(did you mean 'box_train'\?\)"):
        load_prompts("lab:screens/box")


SOME = (Prompt("a", target={"answer": "1"}), Prompt("b", (picture(4, 3, 0),)))
FRAMES = Prompt("c", (picture(4, 3, 0), picture(4, 3, 1)), roles=("image", "last_image"))


@in_one_test(
    ("now", "message"),
    [
        ([SOME[:1]], "there are 1 of them, 2 when it was saved"),
        ([SOME, SOME], r"there are 2 \+ 2 of them, 2 when it was saved"),
        ([(replace(SOME[0], target={"answer": "2"}), SOME[1])], "some of them changed"),
        ([SOME[::-1]], "some of them changed"),
        ([(SOME[0], replace(SOME[1], media=(picture(5, 3, 0),)))], "some of them changed"),
    ],
)
def test_a_run_does_not_go_on_with_other_prompts(now: Any, message: str) -> None:
    saved = json.loads(json.dumps(PromptStream([SOME], [1.0], 0).state_dict()))
    PromptStream([(replace(SOME[0], source="moved.jsonl, line 9"), SOME[1])], [1.0], 0).check_same(saved)
    with pytest.raises(ConfigError, match=f"not the prompts that the run began with: {message}"):
        PromptStream(now, [1.0] * len(now), 0).check_same(saved)


def test_the_same_images_in_other_roles_are_other_prompts() -> None:
    saved = json.loads(json.dumps(PromptStream([(FRAMES,)], [1.0], 0).state_dict()))
    PromptStream([(replace(FRAMES),)], [1.0], 0).check_same(saved)
    for roles in (("last_image", "image"), ("image", "reference"), ()):
        with pytest.raises(ConfigError, match="some of them changed"):
            PromptStream([(replace(FRAMES, roles=roles),)], [1.0], 0).check_same(saved)
