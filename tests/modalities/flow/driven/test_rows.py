"""The rows of samples in nested arguments."""

from typing import Any

import pytest
import torch

from mmrl.modalities.flow.driven import rows
from mmrl.modalities.flow.driven.rows import Fingerprints, Rows, UnknownRows, fingerprint, signature


def arguments(samples: int, tokens: int = 3, branches: int = 2) -> Any:
    """Arguments as of a guided call: two branches of latents, a list, positions, a number."""
    return (
        (torch.arange(samples * branches * 4.0).view(samples * branches, 4),),
        {
            "text": torch.full((samples * branches, tokens, 2), float(tokens)),
            "items": [torch.ones(2) * n for n in range(samples * branches)],
            "positions": torch.arange(tokens),
            "scale": 2.5,
            "nothing": None,
        },
    )


def test_axes_are_those_that_double() -> None:
    rows = Rows.between(arguments(1), arguments(2))
    assert dict(rows.axes) == {
        (0, 0): 0,
        (1, "text"): 0,
        (1, "items"): "list",
        (1, "positions"): "shared",
        (1, "scale"): "shared",
        (1, "nothing"): "shared",
    }
    assert rows.count(arguments(3)) == 6


def test_several_calls_become_one_and_outputs_go_back_to_their_callers() -> None:
    rows = Rows.between(arguments(1), arguments(2))
    (positional, named), counts = rows.joined([arguments(1), arguments(2)])
    assert counts == [2, 4]
    assert torch.equal(positional[0], torch.cat([torch.arange(8.0).view(2, 4), torch.arange(16.0).view(4, 4)]))
    assert [float(item[0]) for item in named["items"]] == [0, 1, 0, 1, 2, 3]
    output = Rows.between((torch.zeros(1, 2),), (torch.zeros(2, 2),))
    parts = output.parted((torch.arange(12.0).view(6, 2),), counts)
    assert [part[0].tolist() for part in parts] == [[[0, 1], [2, 3]], [[4, 5], [6, 7], [8, 9], [10, 11]]]


def test_a_prompt_that_is_there_once_a_branch_is_repeated_for_its_members() -> None:
    rows = Rows.between(arguments(1), arguments(2))
    (_, one), (latents, _) = arguments(1), arguments(3)
    one["text"] = torch.tensor([1.0, 2.0])[:, None, None].expand(2, 3, 2)
    (_, named), counts = rows.joined([(latents, one)])
    assert counts == [6] and named["text"][:, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]


def test_a_sample_may_have_several_entries_of_an_argument_side_by_side() -> None:
    """As the features of a first and of a last frame, for which the network has one row of tokens."""

    def call(samples: int) -> Any:
        frames = torch.arange(2.0).repeat(samples)[:, None]
        return (), {"latents": torch.zeros(samples, 3), "frames": frames, "names": ["first", "last"] * samples}

    rows = Rows.between(call(1), call(2), count=1)
    assert rows.widths == {(1, "frames"): 2, (1, "names"): 2} and rows.count(call(3)) == 3
    wide = call(1)[1] | {"latents": torch.zeros(3, 3)}
    (_, named), counts = rows.joined([((), wide), call(2)])
    assert counts == [3, 2] and named["latents"].shape == (5, 3)
    assert named["frames"][:, 0].tolist() == [0, 1] * 5 and named["names"] == ["first", "last"] * 5
    assert Rows.between(call(1), call(2)).count(call(3)) == 6  # without the number of rows it looks like two branches


def test_branches_of_guidance_with_several_entries_are_repeated_whole() -> None:
    one, two = (((torch.zeros(2 * n, 1), torch.arange(4.0).repeat_interleave(n)),) for n in (1, 2))
    rows = Rows.between(one, two, count=2)
    ((_, entries),), _ = rows.joined([((torch.zeros(6, 1), torch.arange(4.0)),)])
    assert entries.tolist() == [0, 1] * 3 + [2, 3] * 3


def test_lengths_are_padded_at_the_end_only_where_it_is_allowed() -> None:
    rows = Rows.between(arguments(1), arguments(2))
    short, long = arguments(1, tokens=2), arguments(1, tokens=5)
    assert signature(rows, short, ()) != signature(rows, long, ())
    assert signature(rows, short, ("text", "positions")) == signature(rows, long, ("text", "positions"))
    (_, named), _ = rows.joined([short, long])
    assert named["text"].shape == (4, 5, 2) and named["text"][0, 2:].abs().sum() == 0
    assert torch.equal(named["positions"], torch.arange(5))


@pytest.mark.parametrize("two", [torch.zeros(2, 6), torch.zeros(3, 3), torch.zeros(2)])
def test_arguments_that_do_not_double_are_refused(two: torch.Tensor) -> None:
    with pytest.raises(UnknownRows):
        Rows.between((torch.zeros(1, 3),), (two,))


def test_fingerprints_are_of_content() -> None:
    assert fingerprint([torch.ones(2), "a"]) == fingerprint([torch.ones(2), "a"])
    assert fingerprint(torch.ones(2)) != fingerprint(torch.ones(2, 1))
    assert fingerprint(torch.ones(2)) != fingerprint(torch.tensor([1.0, 1.5]))


def test_fingerprints_are_read_together_and_then_known(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [torch.arange(3), torch.tensor([True, False]), torch.zeros(0), torch.ones(2, dtype=torch.bfloat16)]
    expected = [fingerprint(value) for value in values]
    known = Fingerprints()
    known.meet([*values, values[0], "text"])
    monkeypatch.setattr(rows, "_bytes", None)
    assert [known(value) for value in values] == expected
    values[0][0] = 5
    with pytest.raises(TypeError):  # it must be read again
        known(values[0])


def test_a_fingerprint_is_made_again_only_for_a_tensor_that_was_written_into() -> None:
    known, tensor = Fingerprints(), torch.tensor([1.0, 2.0])
    first = known(tensor)
    assert first == known(torch.tensor([1.0, 2.0])) == fingerprint(tensor)
    assert known(tensor) is first
    tensor[0] = 3
    assert known(tensor) == fingerprint(torch.tensor([3.0, 2.0])) != first
    with torch.inference_mode():
        changing = torch.tensor([1.0])
        before = known(changing)
        changing[0] = 2
        assert known(changing) != before
    assert known({"a": (1, None)}) == fingerprint({"a": (1, None)})
