"""Sets of examples that rewards compare samples with: folders of images or sounds, and files of texts."""

import wave
from pathlib import Path

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs
from mmrl.media.mp4 import read_sound
from mmrl.media.pictures import StoredPicture, as_tensor

from .set_embedders import OUTPUTS, EmbedSamples, Features

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".m4a", ".mp4")
TINY_EXAMPLES = 6  # of the set of a tiny twin


def embedded_examples(embed: EmbedSamples, features: Features, source: str, setting: str) -> list[Tensor]:
    """Returns the embeddings [n, D] of the parts of each example of `source`, as of samples, without gradients.

    Args:
        source: a folder with images (of `dino`, `clip`, `pixels`) or sounds (of `clap`), at any depth; of `text` a text
            file with an example a line. setting: what errors call it.
    Raises ConfigError where there is none, or one that cannot be read or embedded.
    """
    kind = OUTPUTS[features]
    with torch.no_grad():
        if kind == "texts":
            made = embed(Outputs(texts=tuple(example_texts(source, setting))))
            if not all(map(len, made)):
                raise ConfigError(f"{setting}: a text of {source} is longer than the encoder reads")
            return made
        read = _picture if kind == "images" else _sound
        files = _files(source, IMAGES if kind == "images" else SOUNDS, setting)
        return [embed(read(file))[0] for file in files]  # one by one: they have different sizes


def example_texts(source: str, setting: str) -> list[str]:
    """Returns the lines of a text file, without empty ones. Raises ConfigError where there are none."""
    file = Path(source)
    if not file.is_file():
        raise ConfigError(f"{setting} must be a text file with an example a line, got {source!r}, which is no file")
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}: {source} is no text in UTF-8: {error}") from error
    if not any(lines):
        raise ConfigError(f"{setting}: {source} has no text")
    return [line for line in lines if line]


def write_tiny_examples(features: Features, place: Path, seed: int) -> str:
    """Writes a few random examples to `place`; returns their source: that folder, or a file in it."""
    place.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    if OUTPUTS[features] == "texts":
        return write_tiny_texts(place)
    for number in range(TINY_EXAMPLES):
        if OUTPUTS[features] == "images":
            _write_picture(place / f"{number}.png", generator)
        else:
            _write_tone(place / f"{number}.wav", generator)
    return str(place)


def write_tiny_texts(place: Path) -> str:
    """Writes a file of a few texts; returns its path."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "texts.txt").write_text("a red barn\nrain on a roof\na slow waltz\n", encoding="utf-8")
    return str(place / "texts.txt")


def _files(source: str, endings: tuple[str, ...], setting: str) -> list[Path]:
    folder = Path(source)
    if not folder.is_dir():
        raise ConfigError(f"{setting} must be a folder of {', '.join(endings)}, got {source!r}, which is no folder")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in endings)
    if not files:
        raise ConfigError(f"{setting}: the folder {source} has no {', '.join(endings)}")
    return files


def _picture(file: Path) -> Outputs:
    return Outputs(images=as_tensor(StoredPicture(file.name, file).load())[None])


def _sound(file: Path) -> Outputs:
    sound = read_sound(file)
    if sound is None:
        raise ConfigError(f"{file.name} has no sound")
    return Outputs(audio=sound.samples[None], audio_rate=(sound.rate,))


def _write_picture(file: Path, generator: torch.Generator) -> None:
    from PIL import Image

    colour, noise = torch.rand(1, 1, 3, generator=generator), torch.rand(32, 32, 3, generator=generator)
    pixels = (255 * (0.7 * colour + 0.3 * noise)).round().to(torch.uint8)
    Image.fromarray(pixels.numpy()).save(file)


def _write_tone(file: Path, generator: torch.Generator) -> None:
    pitch = float(0.02 + 0.2 * torch.rand((), generator=generator))
    samples = (20_000 * torch.sin(pitch * torch.arange(24_000))).to(torch.int16)
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(48_000)
        sound.writeframes(samples.numpy().astype("<i2").tobytes())
