"""Code that loads an exported vision-language model and answers without mmrl, with the settings of its run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmrl.media.video import FrameSampling
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.plans.answers import AnswerPlan

from ..encoding.inputs import parts_of

SCREEN = (70_001, 80_003)  # pixels that no screen has: the code replaces them by the size of the true screen
UNITS: dict[Convention, str] = {
    "original": "pixels of the image",
    "resized": "pixels of the image as the processor resized it",
    "thousand": "0 to 1000 on both axes",
    "unit": "0 to 1 on both axes",
}


@dataclass(frozen=True)
class Question:
    """A prompt as the model receives it; its media are those of whoever runs the code."""

    text: str  # the template filled in
    system: str | None
    num_images: int
    num_clips: int
    has_grid: bool  # whether the processor returns the size of a resized image
    convention: Convention | None  # the unit of coordinates


@dataclass(frozen=True)
class Clips:
    """The rules by which the run chose frames of videos."""

    sampling: FrameSampling
    is_resized: bool  # by the processor; else by the sampling
    has_inner_marks: bool  # the template puts a video between two tokens that the model was not trained with


@dataclass(frozen=True)
class Tokens:
    """The end tokens and the banned tokens of a model."""

    ends: Sequence[int]
    banned: Sequence[int]  # that no answer may hold, ascending


def code_of(
    question: Question, plan: AnswerPlan | None, base: str | None, clips: Clips | None, dtype: str, tokens: Tokens
) -> str:
    """Returns the Python that loads the export and answers one question.

    `base`: as in `Loadable.usage`; None for a whole model.
    """
    return "\n".join(
        [
            *_imports(question, base),
            "",
            *_loading(base, dtype),
            "",
            *_media(question, clips),
            *_messages(question),
            *_asking(question, clips, dtype),
            *_answering(plan, tokens),
            "",
        ]
    )


def _imports(question: Question, base: str | None) -> list[str]:
    lines = ["from pathlib import Path", ""] if question.num_clips else []
    lines += ["import torch"]
    lines += ["from peft import PeftModel"] if base is not None else []
    lines += ["from PIL import Image"] if question.num_images else []
    lines += ["from transformers import AutoModelForImageTextToText, AutoProcessor"]
    return lines + (
        ["", "from mmrl.media.video import FrameSampling, FrameSize, StoredClip"] if question.num_clips else []
    )


def _loading(base: str | None, dtype: str) -> list[str]:
    loader = "AutoModelForImageTextToText.from_pretrained"
    lines = ['folder = "."  # this folder, or its name on the hub', "processor = AutoProcessor.from_pretrained(folder)"]
    lines += [f"model = {loader}({'folder' if base is None else base}, dtype={dtype})"]
    lines += ["model = PeftModel.from_pretrained(model, folder)"] if base is not None else []
    return [*lines, 'model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()']


def _media(question: Question, clips: Clips | None) -> list[str]:
    """Returns the lines that open the images and videos of the question, from files of these names."""
    lines = [f'{_name("image", n, question.num_images)} = Image.open("{_name("image", n, question.num_images)}.png")'
             '.convert("RGB")  # yours' for n in range(question.num_images)]  # fmt: skip
    for number in range(question.num_clips):
        assert clips is not None, "a question about a video says how frames are chosen"
        name = _name("clip", number, question.num_clips)
        stored = f'StoredClip("{name}", path=Path("{name}.mp4"))'
        lines.append(f"{name} = {stored}.load({clips.sampling!r})  # yours; frames are chosen as in the run")
    return lines


def _name(kind: str, number: int, count: int) -> str:
    return kind if count == 1 else f"{kind}_{number + 1}"


def _messages(question: Question) -> list[str]:
    system = "" if question.system is None else question.system
    told = {"{WIDTH}": str(SCREEN[0]), "{HEIGHT}": str(SCREEN[1])}
    is_sized = any(number in question.text + system for number in told.values())
    image = _name("image", 0, question.num_images)  # the screenshot
    lines = []
    if is_sized and question.convention == "resized" and question.has_grid:
        lines += [
            f'grid = processor.image_processor(images=[{image}], return_tensors="pt")["image_grid_thw"][0]',
            "height, width = (grid[1:] * processor.image_processor.patch_size).tolist()  # as the model sees it",
        ]
    elif is_sized:
        lines += [f"width, height = {image}.size"]

    def said(text: str) -> str:
        written = repr(text)
        if not any(number in text for number in told.values()):
            return written
        for mark, number in told.items():
            written = written.replace(number, mark)
        return f'{written}.replace("{{WIDTH}}", str(width)).replace("{{HEIGHT}}", str(height))'

    counts = {"image": 0, "video": 0}
    content = []
    for kind, text in parts_of(question.text, question.num_images, question.num_clips):
        if kind == "text":
            content.append(f'{{"type": "text", "text": {said(text)}}}')
            continue
        if kind == "image":
            value = _name("image", counts[kind], question.num_images)
        else:
            value = f"{_name('clip', counts[kind], question.num_clips)}.pixels"
        counts[kind] += 1
        content.append(f'{{"type": "{kind}", "{kind}": {value}}}')
    lines += ["messages = ["]
    if question.system is not None:
        part = f'{{"type": "text", "text": {said(system)}}}'
        lines += [f'    {{"role": "system", "content": [{part}]}},']
    user = [f"        {part}," for part in content]
    return [*lines, '    {"role": "user", "content": [', *user, "    ]},", "]"]


def _asking(question: Question, clips: Clips | None, dtype: str) -> list[str]:
    settings = ["add_generation_prompt=True", "tokenize=True", "return_dict=True", 'return_tensors="pt"']
    lines = []
    if question.num_clips:
        assert clips is not None, "a question about a video says how frames are chosen"
        names = ", ".join(_name("clip", number, question.num_clips) for number in range(question.num_clips))
        lines += [
            'told = [{"total_num_frames": c.total, "fps": c.fps, "frames_indices": c.times} for c in [' + names + "]]",
            'videos = {"do_sample_frames": False, "video_metadata": told'
            + ("}" if clips.is_resized else ', "do_resize": False}'),
        ]
        settings += ['processor_kwargs={"videos_kwargs": videos}']
        if clips.has_inner_marks:
            lines += [
                "marks = processor.vision_start_token + processor.video_token + processor.vision_end_token",
                "template = processor.chat_template.replace(marks, processor.video_token)  # as its makers do",
            ]
            settings += ["chat_template=template"]
    return [*lines, "inputs = processor.apply_chat_template(", "    messages,", f"    {', '.join(settings)},",
            f").to(model.device, {dtype})"]  # fmt: skip


def _answering(plan: AnswerPlan | None, tokens: Tokens) -> list[str]:
    """Returns the lines that generate the answer, with all settings: else those of the model itself would hold."""
    plan = plan or AnswerPlan(1, 512)
    settings = {"max_new_tokens": plan.max_tokens, "repetition_penalty": 1.0, "do_sample": plan.temperature > 0}
    if plan.temperature > 0:
        settings |= {"temperature": plan.temperature, "top_p": plan.top_p, "top_k": plan.top_k or 0}
        settings |= {"min_p": plan.min_p} if plan.min_p else {}
    lines = [
        f"ends = {list(tokens.ends)}",
        "torch.manual_seed(0)",
        "tokens = model.generate(",
        "    **inputs,",
        *(f"    {name}={value}," for name, value in settings.items()),
    ]
    lines += ["    eos_token_id=ends,", "    pad_token_id=ends[0],"]
    if plan.stop:
        lines += [f"    stop_strings={list(plan.stop)}, tokenizer=processor.tokenizer,"]
    if tokens.banned:
        lines += [f"    suppress_tokens={_ranges(tokens.banned)},  # that stand for images, or for nothing"]
    lines += [")"]
    lines += ['answer = [token for token in tokens[0, inputs["input_ids"].shape[1] :].tolist() if token not in ends]']
    return [*lines, "print(processor.tokenizer.decode(answer, clean_up_tokenization_spaces=False))"]


def _ranges(numbers: Iterable[int]) -> str:
    """Returns a list of ascending numbers as Python, with runs as ranges."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    parts = [f"*range({row[0]}, {row[-1] + 1})" if len(row) > 2 else ", ".join(map(str, row)) for row in rows]
    return f"[{', '.join(parts)}]"


def unit_note(convention: Convention | None, num_images: int) -> tuple[str, ...]:
    """Returns a note on the unit of coordinates in answers, for prompts with images."""
    return (f"Coordinates in answers are {UNITS[convention]}.",) if num_images and convention is not None else ()


def screen(convention: Convention | None) -> Canvas:
    """Returns the canvas that stands for any screen in a prompt that names its size."""
    return Canvas(SCREEN, SCREEN, convention)
