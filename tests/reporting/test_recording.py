"""An episode to look at: what stands on its screens, below them, and in its video."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmrl.media.mp4 import Video, read_frames
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.actions.action import Action
from mmrl.reporting.drawing import GAP, LINE, PREDICTED, Marks, marked, marked_size
from mmrl.reporting.recording import FPS, OF_REWARDS, REPEATS, Recording, Turn, in_words, legend_of, reward_text

CLICK = Action("click", point=(30.0, 20.0))


def picture(width: int, height: int) -> StoredPicture:
    content = BytesIO()
    Image.new("RGB", (width, height), (200, 200, 200)).save(content, "PNG")
    return StoredPicture("grey", content=content.getvalue())


def turn(action: Action | None = CLICK, reward: float | None = 0.0, size: tuple[int, int] = (320, 200)) -> Turn:
    return Turn(picture(*size), "an answer", action, reward)


def recording(*turns: Turn, outcome: str = "done") -> Recording:
    return Recording(turns, picture(320, 200), outcome)


def has_colour(image: Image.Image, colour: tuple[int, int, int]) -> bool:
    return any(one == colour for _, one in image.getcolors(10**6) or [])


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (None, "no action was understood"),
        (CLICK, "click (30, 20)"),
        (Action("double_click", point=(1.6, 2.4)), "double click (2, 2)"),
        (Action("drag", point=(1.0, 2.0), end=(3.0, 4.0)), "drag from (1, 2) to (3, 4)"),
        (Action("drag", end=(3.0, 4.0)), "drag to (3, 4)"),
        (Action("scroll", direction="down", amount=300.0), "scroll down 300 pixels"),
        (Action("type", text="<b>tea</b>"), 'type "<b>tea</b>"'),
        (Action("hotkey", keys=("ctrl", "c")), "hotkey ctrl + c"),
        (Action("wait", amount=1.5), "wait 1.5 s"),
        (Action("finish"), "finish"),
    ],
)
def test_an_action_in_words(action: Action | None, words: str) -> None:
    assert in_words(action) == words


def test_the_sum_of_rewards_is_unknown_where_one_is() -> None:
    assert recording(turn(reward=0.25), turn(reward=-1.0), turn(reward=2.0)).total == 1.25
    assert recording(turn(reward=0.25), turn(reward=None)).total is None
    assert [reward_text(value) for value in (None, 0.0, 0.25, 1 / 3)] == [
        "",
        "reward 0",
        "reward 0.25",
        "reward 0.3333",
    ]


def test_the_legend_names_the_marks_that_are_there() -> None:
    drag = Action("drag", point=(1.0, 2.0), end=(30.0, 40.0))
    boxed = Action("click", box=(1.0, 1.0, 9.0, 9.0))
    assert recording(turn(drag), turn(None)).marks == Marks(points=((1, 2),), paths=(((1, 2), (30, 40)),))
    texts = [text.split(":")[0] for _, text in legend_of(recording(turn(drag), turn(boxed)).marks, has_rewards=True)]
    assert texts == ["cross", "dashed box", "dashed line", "right"]
    assert legend_of(Marks(), has_rewards=True) == [(Marks(), OF_REWARDS)]
    assert legend_of(Marks(), has_rewards=False) == []


def test_the_strip_ends_with_the_last_screen_and_a_legend() -> None:
    strip = recording(turn(), turn(reward=1.0)).strip()
    # three cells in one row, then the legend: the cross and what is at the right
    assert strip.size == (3 * 320 + 2 * GAP, 200 + LINE + 2 * LINE)
    assert has_colour(strip.crop((0, 0, 320, 200)), PREDICTED.colour), "the action"
    assert not has_colour(strip.crop((2 * (320 + GAP), 0, strip.width, 200)), PREDICTED.colour), "the last screen"
    assert has_colour(strip.crop((0, 200 + LINE, strip.width, strip.height)), PREDICTED.colour), "the legend"
    broken = Recording((turn(), turn()), None, "failed").strip()
    assert broken.size[0] == 2 * 320 + GAP


def test_a_reward_below_a_screen_is_never_cut() -> None:
    long = Turn(picture(320, 200), "", Action("type", text="word " * 50), 0.0)
    bar = recording(long).strip().crop((0, 200, 320, 200 + LINE)).convert("L")
    at_right = bar.crop((240, 0, 320, LINE))
    short = recording(Turn(picture(320, 200), "", None, 0.0)).strip().crop((240, 200, 320, 200 + LINE)).convert("L")
    assert list(at_right.get_flattened_data()) == list(short.get_flattened_data())


def test_the_video_shows_each_turn_and_the_last_screen() -> None:
    frames = list(recording(turn(), turn(None, size=(200, 320)), turn(reward=1.0)).frames())
    assert len(frames) == REPEATS * 4 and frames[0].dtype == torch.uint8
    whole = [Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in frames]
    assert {one.size for one in whole} == {(320, 320 + 2 * 21)}, "as wide as the widest, as high as the highest"
    marked = [has_colour(one, PREDICTED.colour) for one in whole[::REPEATS]]
    assert marked == [True, False, True, False]
    for start in range(0, len(whole), REPEATS):
        assert all(torch.equal(frames[start], frames[start + more]) for more in range(REPEATS))


@pytest.mark.slow
def test_the_video_is_a_file_that_plays(tmp_path: Path) -> None:
    made = recording(turn(), turn(reward=1.0))
    made.save_video(tmp_path / "episode.mp4")
    stacked = torch.stack(list(made.frames()))
    Video(stacked, FPS).save(tmp_path / "stacked.mp4")
    assert (tmp_path / "episode.mp4").read_bytes() == (tmp_path / "stacked.mp4").read_bytes()
    frames, fps = read_frames(tmp_path / "episode.mp4")
    assert fps == FPS and len(frames) == len(stacked)
    assert (frames[0].float() - stacked[0].float()).abs().mean() < 4


@dataclass(frozen=True)
class Screen:
    """A screen that counts how often it is loaded."""

    loaded: list[int]
    size: tuple[int, int] = (320, 200)

    def load(self) -> Image.Image:
        self.loaded.append(1)
        return Image.new("RGB", self.size)


def test_a_frame_is_made_when_it_is_wanted() -> None:
    loaded: list[int] = []
    made = recording(*[Turn(Screen(loaded), "", None, 0.0)] * 50)
    frames = made.frames()
    next(frames)
    assert len(loaded) == 1
    assert len(list(frames)) == 51 * REPEATS - 1 and len(loaded) == 50
    many = recording(*[Turn(Screen(loaded, (2000, 1)), "", None, 0.0)] * 1001)
    assert len(many._sums()) == 1002 and next(many.frames()).shape == (3, 200 + 2 * 21, 1024)


def test_the_size_of_a_marked_picture_is_known_from_the_size_of_the_picture() -> None:
    for size in ((3, 2), (100, 160), (1024, 1023), (1025, 7), (5000, 1), (1, 1), (33, 3001)):
        assert marked(Image.new("RGB", size), Marks(), Marks()).size == marked_size(size)
