"""Peak memory of one update of a vision-language model, mmrl against the plain batch; each in its own process.

    python benchmarks/vlm_memory.py --train lora

One prompt of 1,024 tokens with an image, 8 answers of 64 tokens, a vocabulary of 150,000; then twice the vocabulary,
and twice the tokens. Plain takes logits of the answers' positions only. `head` is the part from hidden states to
log-probs, forward and backward, for 4 times as many answers. Counted is resident memory above what the process holds
before the update: the model, the encoded prompt and the answers (Linux only).
Bars: at most a quarter of plain; doubled vocabulary or tokens change it by under 10%.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import argument_parser, emit
from _vlm import Plain, Question, write_model
from vlm_update import Mmrl

from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tokens.log_probs import OutputHead, token_log_probs
from mmrl.modalities.tokens.sampling import SamplingDistribution

GROUP, VOCABULARY, TOKENS = 8, 150_000, 64
SIZES = [(VOCABULARY, TOKENS), (2 * VOCABULARY, TOKENS), (VOCABULARY, 2 * TOKENS)]


def peak(step: Callable[[], Any]) -> float:
    """MiB of resident memory that the step adds at its highest."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = resident("VmRSS")
    step()
    return (resident("VmHWM") - before) / 1024


def resident(name: str) -> int:
    """KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def update_step(side: str, train: str, checkpointing: bool, vocabulary: int, tokens: int) -> Callable[[], Any]:
    """One update of a whole model."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), vocabulary)
        lora = Lora(rank=8, alpha=16) if train == "lora" else None
        mmrl = Mmrl(Path(folder), 1, GROUP, tokens, lora, checkpointing)
    for parameter in mmrl.policy.modules()["model"].parameters():
        parameter.data.clone()  # pages of a mapped file count from when they are read
    assert len(mmrl.answers) == GROUP  # made now, not in the step
    if side == "mmrl":
        return mmrl.update
    encoded = mmrl.policy.encode(mmrl.prompts)[0]
    media = encoded.media["pixel_values"], encoded.media["image_grid_thw"]
    plain = Plain(
        mmrl.policy.modules()["model"], [Question(encoded.tokens[None], *media, encoded.token_types[None])], []
    )
    return partial(plain.backward, mmrl.answers, mmrl.advantages, GROUP)


def head_step(side: str, vocabulary: int, tokens: int) -> Callable[[], Any]:
    """Log-probs of 4 * GROUP answers from their hidden states under a frozen head of 128 channels."""
    rows = 4 * GROUP * tokens
    hidden, weight = torch.randn(rows, 128, requires_grad=True), torch.randn(vocabulary, 128)
    picked = torch.randint(vocabulary, (rows,))

    def step() -> None:
        if side == "mmrl":
            log_prob, _ = token_log_probs(hidden, OutputHead(weight), picked, SamplingDistribution(1.0), 2**22)
        else:
            log_prob = (hidden @ weight.T).log_softmax(-1).gather(-1, picked[:, None])
        log_prob.sum().backward()

    return step


def measured(side: str, options: argparse.Namespace, vocabulary: int, tokens: int) -> float:
    """The peak of one side, from a process of its own."""
    command = [sys.executable, __file__, "--train", options.train, "--threads", str(options.threads), "--one", side]
    command += [str(vocabulary), str(tokens), *(["--checkpointing"] if options.checkpointing else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["mebibytes"])


def report(options: argparse.Namespace) -> None:
    ours = [measured("mmrl", options, *size) for size in SIZES]
    plain = measured("plain", options, *SIZES[0])
    emit(
        "vlm_memory",
        train=options.train,
        checkpointing=options.checkpointing,
        mebibytes_mmrl=round(ours[0]),
        mebibytes_plain=round(plain),
        share_of_plain=round(ours[0] / plain, 3),
        change_with_twice_the_vocabulary=round(ours[1] / ours[0] - 1, 3),
        change_with_twice_the_tokens=round(ours[2] / ours[0] - 1, 3),
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--train", choices=["lora", "full", "head"], default="lora", help="what is trained, or the head"
    )
    parser.add_argument("--checkpointing", action="store_true", help="of gradients, on both sides")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "VOCABULARY", "TOKENS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one is None:
        report(options)
        return
    side, vocabulary, tokens = options.one[0], int(options.one[1]), int(options.one[2])
    if options.train == "head":
        step = head_step(side, vocabulary, tokens)
    else:
        step = update_step(side, options.train, options.checkpointing, vocabulary, tokens)
    print(json.dumps({"mebibytes": peak(step)}))


if __name__ == "__main__":
    main()
