"""What the speech models see of a sound and give of it: log-mel bands, mel cepstra, log F0.

A frame is 10 ms. Frame k of a sound x is the 400 samples (25 ms) from 160 k on, under a Hann window; its F0 is measured
on the 640 samples (40 ms) with the same middle. A sound of n samples has (n - 400) // 160 + 1 frames.
"""

from __future__ import annotations

import numpy as np

from mlts.speech.g722 import RATE
from nnhal.types import Array

HOP = 160  # samples between frames
BANDS = 40
CEPSTRA = 25  # c0 to c24
STACK = 2  # frames that the asr model sees in a step
_WINDOW = 400
_FFT = 512
_LOWEST, _HIGHEST = 60.0, 7600.0  # Hz, the edges of the bands
_FLOOR = 1e-10  # power of a band, full scale 1, below which its logarithm says nothing
_F0_WINDOW = 640
_LAGS = (40, 220)  # samples: 400 Hz down to 73 Hz
_VOICED = 0.5  # share of the power that a period must explain
_NEARLY = 0.9  # of the best lag's share; the shortest lag with that much is taken, not its multiple
_QUIET = 1e-5  # mean power, full scale 1, below which a frame is no voice


def log_mel(sound: Array) -> Array:
    """Natural logarithms of the power in 40 bands, float32 [frames, 40].

    The bands are triangles on the mel scale 1127 ln(1 + f / 700), equally spaced there from 60 to 7600 Hz.

    Args:
        sound: int16 at 16 kHz.
    """
    power = np.abs(np.fft.rfft(_frames(sound, _WINDOW) * np.hanning(_WINDOW), _FFT)) ** 2
    banded: Array = power @ _mel_bands().T / _WINDOW
    return np.log(np.maximum(banded, _FLOOR)).astype(np.float32)


def cepstra(bands: Array) -> Array:
    """Mel cepstra c0 to c24 of log-mel bands [frames, 40]: float64 [frames, 25].

    In the scale of the field: c_k is the mean over the bands of ln(amplitude) cos(pi k (n + 1/2) / 40), so that the log
    amplitude is c_0 + 2 sum c_k cos.
    """
    angles = np.pi * np.outer(np.arange(BANDS) + 0.5, np.arange(CEPSTRA)) / BANDS
    return np.asarray(0.5 * bands.astype(np.float64) @ np.cos(angles) / BANDS)


def log_f0(sound: Array) -> Array:
    """The natural logarithm of the pitch in Hz for each frame, float32; 0 where there is no voice.

    It is the lag at which the autocorrelation, divided by the window's own, is largest, refined by a parabola.
    """
    frames = _frames(sound, _F0_WINDOW, (_F0_WINDOW - _WINDOW) // 2)
    window = np.hanning(_F0_WINDOW)
    shares = _autocorrelation((frames - frames.mean(1, keepdims=True)) * window) / _autocorrelation(window[None])
    shares = shares / np.maximum(shares[:, :1], 1e-12)
    first, last = _LAGS
    inside = shares[:, first:last]
    peak = (inside >= shares[:, first - 1 : last - 1]) & (inside >= shares[:, first + 1 : last + 1])
    heights = np.where(peak, inside, 0.0)
    best = heights.max(1)
    lag = first + np.argmax(heights >= _NEARLY * best[:, None], 1)
    rows = np.arange(len(lag))
    before, at, behind = (shares[rows, lag + step] for step in (-1, 0, 1))
    bend = before - 2 * at + behind
    lags = lag + np.where(bend < 0, 0.5 * (before - behind) / np.where(bend < 0, bend, 1.0), 0.0)
    voiced = (best > _VOICED) & ((frames**2).mean(1) > _QUIET)
    return np.where(voiced, np.log(RATE / np.where(voiced, lags, 1.0)), 0.0).astype(np.float32)


def stacked(bands: Array) -> Array:
    """Frames [n, 40] in pairs [(n + 1) // 2, 80], 20 ms each; the last frame is repeated where it has no partner."""
    pairs = -(-len(bands) // STACK)
    padded = np.concatenate([bands, np.repeat(bands[-1:], pairs * STACK - len(bands), 0)])
    return padded.reshape(pairs, STACK * bands.shape[1])


def _frames(sound: Array, size: int, before: int = 0) -> Array:
    """Frames of `size` samples, full scale 1, that begin `before` samples earlier; zeros beyond the sound's ends."""
    count = max(0, (len(sound) - _WINDOW) // HOP + 1)
    padded = np.concatenate([np.zeros(before), sound / 32768.0, np.zeros(size)])
    return np.asarray(padded[HOP * np.arange(count)[:, None] + np.arange(size)])


def _autocorrelation(frames: Array) -> Array:
    """Of each row, at lags from 0 on, one more than is searched."""
    spectrum = np.fft.rfft(frames, 2 * _F0_WINDOW)
    return np.fft.irfft(np.abs(spectrum) ** 2)[:, : _LAGS[1] + 1]


def _mel_bands() -> Array:
    """Weights of the spectrum's lines in each band, [40, lines]."""
    lowest, highest = (1127 * np.log1p(f / 700) for f in (_LOWEST, _HIGHEST))
    edges = np.linspace(lowest, highest, BANDS + 2)
    lines = 1127 * np.log1p(np.fft.rfftfreq(_FFT, 1 / RATE) / 700)
    left, middle, right = (edges[i : i + BANDS, None] for i in range(3))
    return np.asarray(np.maximum(0.0, np.minimum((lines - left) / (middle - left), (right - lines) / (right - middle))))
