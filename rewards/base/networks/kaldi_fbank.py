"""Log mel filter banks as Kaldi computes them, which networks that hear are trained on."""

import math

import torch
from torch import Tensor

FRAME, SHIFT = 0.025, 0.010  # seconds of a frame, and from one frame to the next
LOWEST = 20.0  # Hz
PREEMPHASIS = 0.97


def kaldi_fbank(wave: Tensor, rate: int, num_bins: int) -> Tensor:
    """Returns the logarithms [frames, num_bins] float32 of the energy of a sound [S] around pitches on the mel scale.

    Kaldi's `compute-fbank-feats` (feature-fbank.cc, feature-window.cc, mel-computations.cc) with a Hann window, without
    dither and without a column of energy: frames of 25 ms every 10 ms, only whole ones; each less its mean; x_t - 0.97
    x_(t-1); the power spectrum of the next power of two; triangles that are even in mel = 1127 ln(1 + f / 700), from 20
    Hz to half the rate; log(max(energy, 2^-23)). A sound that is shorter than a frame has none.
    """
    length, shift = int(rate * FRAME), int(rate * SHIFT)
    wave = wave.float()
    if len(wave) < length:
        return wave.new_zeros(0, num_bins)
    frames = wave.unfold(0, length, shift)  # [frames, length]
    frames = frames - frames.mean(1, keepdim=True)
    before = torch.cat([frames[:, :1], frames[:, :-1]], 1)  # the first sample stands before itself
    window = torch.hann_window(length, periodic=False, device=wave.device)
    size = 2 ** math.ceil(math.log2(length))
    power = torch.fft.rfft((frames - PREEMPHASIS * before) * window, n=size).abs().square()
    energy = power @ mel_triangles(num_bins, size, rate).to(power)
    logarithms: Tensor = energy.clamp_min(torch.finfo(torch.float32).eps).log()
    return logarithms


def mel_triangles(num_bins: int, size: int, rate: int) -> Tensor:
    """Returns the weights [size / 2 + 1, num_bins] of the frequencies of a Fourier transform of `size` samples.

    The highest frequency, half the rate, belongs to none.
    """
    low, high = (1127 * math.log1p(frequency / 700) for frequency in (LOWEST, rate / 2))
    edges = torch.linspace(low, high, num_bins + 2, dtype=torch.float64)
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    frequencies = torch.arange(size // 2 + 1, dtype=torch.float64)[:, None] * rate / size
    mels = 1127 * torch.log1p(frequencies / 700)  # [size / 2 + 1, 1]
    weights = torch.minimum((mels - left) / (middle - left), (right - mels) / (right - middle)).clamp_min(0)
    weights[-1] = 0
    return weights.float()
