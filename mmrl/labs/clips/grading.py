"""Answers of a model of the lab to questions on held-out clips, and their scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, DynamicCache

from mmrl.labs.clips import networks, world
from mmrl.labs.clips.questions import prompt_positions, prompt_text

BATCH_SIZE = 128
MAX_TOKENS = 8  # of an answer: six, where it is well formed


def frames(seed: int) -> Any:
    """Returns the `mmrl.media.video.Frames` of a seed's clip that the model sees, read from its mp4 file."""
    from mmrl.media.video import FrameSampling  # the real reader; nothing of mmrl is needed to import the lab

    return world.ClipVideo(seed).load(FrameSampling(fps=networks.FRAMES_PER_SECOND))


@torch.no_grad()
def answer(model: Any, processor: Any, asked: Sequence[world.Question], *, is_greedy: bool) -> list[str]:
    """Returns one answer to each question, greedy, or sampled at temperature 1 from torch's global generator."""
    answers = [""] * len(asked)
    for seconds in world.DURATIONS:  # questions about clips of one length have the same number of tokens
        rows = [row for row, question in enumerate(asked) if world.clip(question.clips[0].seed).duration == seconds]
        for row, text in zip(rows, _answers(model, processor, [asked[row] for row in rows], is_greedy), strict=True):
            answers[row] = text
    return answers


def _answers(model: Any, processor: Any, asked: Sequence[world.Question], is_greedy: bool) -> list[str]:
    """Returns the answers to questions about clips of one length; `generate` would use other positions."""
    if not asked:
        return []
    shown = [frames(question.clips[0].seed) for question in asked]
    encoded = processor(
        text=[prompt_text(processor, question.text) for question in asked],
        videos=[one.pixels for one in shown],
        video_metadata=[{"fps": one.sampled_fps, "total_num_frames": len(one.indices)} for one in shown],
        do_sample_frames=False,
        return_tensors="pt",
    )
    tokens = encoded["input_ids"]  # [B, L], the answers behind
    length, seconds = tokens.shape[1], len(shown[0].indices) // 2
    positions = prompt_positions(length + MAX_TOKENS, seconds)[:, None].expand(-1, len(asked), -1)
    media = {name: encoded[name] for name in ("pixel_values_videos", "video_grid_thw")}
    cache = DynamicCache(config=model.config.text_config)
    for place in range(length, length + MAX_TOKENS):
        start = cache.get_seq_length()
        output = model(
            input_ids=tokens[:, start:],
            position_ids=positions[..., start:place],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **({} if start else media),
        )
        log_prob = output.logits[:, -1].log_softmax(-1)
        drawn = log_prob.argmax(-1, keepdim=True) if is_greedy else torch.multinomial(log_prob.exp(), 1)
        tokens = torch.cat([tokens, drawn], 1)
    rows: list[str] = processor.tokenizer.batch_decode(tokens[:, length:])
    return [row.partition(processor.tokenizer.eos_token)[0] for row in rows]


def evaluate(model: Any, processor: Any, *, is_greedy: bool, num_questions: int) -> float:
    """Returns the mean temporal IoU of the answers to the first held-out questions."""
    asked = world.prompts("held_out")[:num_questions]
    scores = []
    for start in range(0, len(asked), BATCH_SIZE):
        part = asked[start : start + BATCH_SIZE]
        answers = answer(model, processor, part, is_greedy=is_greedy)
        scores += [world.score(text, q.target["span"]) for text, q in zip(answers, part, strict=True)]
    return sum(scores) / len(scores)


def report(folder: Path, num_questions: int) -> None:
    """Prints the scores of the checkpoint in a folder, sampled and greedy."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    torch.manual_seed(0)
    sampled, greedy = (
        evaluate(model, processor, is_greedy=is_greedy, num_questions=num_questions) for is_greedy in (False, True)
    )
    print(f"{folder.name}: sampled {sampled:.4f} greedy {greedy:.4f}", flush=True)
