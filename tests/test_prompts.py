"""Prompt files, and the order in which a run draws from them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from mmrl.data import Prompt
from mmrl.errors import ConfigError
from mmrl.labs.shapes import world
from mmrl.prompts import PromptStream, load_prompts


def prompt_set(name: str, size: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(f"{name}{number}") for number in range(size))


def drawn(stream: PromptStream, count: int) -> list[str]:
    return [prompt.text for _, prompt in stream.draw(count)]


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
    first, second = drawn(stream, 20), drawn(stream, 20)
    assert sorted(first) == sorted(second) == sorted(prompt.text for prompt in prompt_set("a", 20))
    assert first != second
    assert first != [prompt.text for prompt in prompt_set("a", 20)]


def test_draws_are_numbered_and_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    sets, weights = [prompt_set("a", 5), prompt_set("b", 3)], [1.0, 2.0]
    whole = PromptStream(sets, weights, seed=4).draw(30)
    assert [number for number, _ in whole] == list(range(30))
    stream = PromptStream(sets, weights, seed=4)
    assert [draw for count in (1, 7, 0, 12, 10) for draw in stream.draw(count)] == whole
    assert PromptStream(sets, weights, seed=5).draw(30) != whole


def test_sets_are_drawn_by_their_weights() -> None:
    stream = PromptStream([prompt_set("a", 7), prompt_set("b", 5)], [1.0, 3.0], seed=0)
    counts = Counter(text[0] for text in drawn(stream, 2000))
    assert abs(counts["b"] / 2000 - 0.75) < 4 * (0.75 * 0.25 / 2000) ** 0.5


def test_a_restored_stream_goes_on_where_it_stopped() -> None:
    sets, weights = [prompt_set("a", 5), prompt_set("b", 3)], [1.0, 2.0]
    stream = PromptStream(sets, weights, seed=0)
    stream.draw(13)
    state = json.loads(json.dumps(stream.state_dict()))
    expected = stream.draw(20)
    again = PromptStream(sets, weights, seed=0)
    again.load_state_dict(state)
    assert again.drawn == 13
    assert again.draw(20) == expected
