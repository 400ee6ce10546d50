"""Decodes G.722 at 64 kbit/s, the format of the recordings: 16 kHz sound in two bands of adaptive differences.

Source of all rules and numbers: ITU-T Recommendation G.722, the decoder of mode 1. Names of blocks are its own. Each
byte has a 6-bit code of the low band and a 2-bit code of the high one, and gives two samples. Streams are decoded side
by side, both bands at once, since each step needs the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnhal.types import Array

RATE = 16_000  # Hz
_LANES = 128  # streams decoded side by side; more are no quicker

_LOW_6 = (  # output of the low band's quantiser of 60 levels, for codes 32 to 61; codes 2 to 31 mirror it
    24808, 21904, 19008, 16704, 14984, 13512, 12280, 11192, 10232, 9360, 8576, 7856, 7192, 6576, 6000,
    5456, 4944, 4464, 4008, 3576, 3168, 2776, 2400, 2032, 1688, 1360, 1040, 728, 432, 136,
)  # fmt: skip
_LOW_4 = (20456, 12896, 8968, 6288, 4240, 2584, 1200)  # the same of its 15 levels, for codes 8 to 14
_STEPS_LOW = (-60, 3042, 1198, 538, 334, 172, 58, -30)  # what a code's magnitude adds to the scale's logarithm
_STEPS_HIGH = (798, -214)
_MIRROR = (3, -11, 12, 32, -210, 951, 3876, -805, 362, -156, 53, -11)  # half of the synthesis filter, which is even

_QUANTISER_6 = np.array([-136] * 4 + [-v for v in _LOW_6[:-2]] + [*_LOW_6, -_LOW_6[-2], -_LOW_6[-1]], np.int32)
_QUANTISER_4 = np.array([0, *(-v for v in _LOW_4), *_LOW_4, 0], np.int32)
_QUANTISER_2 = np.array([-7408, -1616, 7408, 1616], np.int32)
_STEP_LOW = np.array([*_STEPS_LOW, *_STEPS_LOW[1:], _STEPS_LOW[0]], np.int32)
_STEP_HIGH = np.array([*_STEPS_HIGH, *_STEPS_HIGH], np.int32)
_POWERS = np.round(2048 * 2 ** (np.arange(32) / 32)).astype(np.int32)
_MOST_LOGARITHM = np.array([[18432], [22528]], np.int32)
_SHIFT = np.array([[9], [11]], np.int32)


def decode(streams: Sequence[bytes]) -> list[Array]:
    """The sound of each stream: int16, two samples for each byte."""
    order = sorted(range(len(streams)), key=lambda i: len(streams[i]))
    sounds: dict[int, Array] = {}
    for first in range(0, len(order), _LANES):
        group = order[first : first + _LANES]
        codes = np.zeros((max(len(streams[i]) for i in group), len(group)), np.uint8)
        for lane, i in enumerate(group):
            codes[: len(streams[i]), lane] = np.frombuffer(streams[i], np.uint8)
        both = _synthesis(*_bands(codes))
        sounds.update({i: both[: 2 * len(streams[i]), lane].copy() for lane, i in enumerate(group)})
    return [sounds[i] for i in range(len(streams))]


def _saturate(x: Array) -> Array:
    return np.minimum(np.maximum(x, -32768), 32767)


def _bands(codes: Array) -> tuple[Array, Array]:
    """The signals of the low and the high band, [step, lane], from bytes [step, lane]."""
    count = codes.shape[1]
    low_codes, high_codes = codes & 63, codes >> 6
    fine = np.stack([_QUANTISER_6[low_codes], _QUANTISER_2[high_codes]], 1)  # [step, band, lane]
    coarse = np.stack([_QUANTISER_4[low_codes >> 2], _QUANTISER_2[high_codes]], 1)
    growth = np.stack([_STEP_LOW[low_codes >> 2], _STEP_HIGH[high_codes]], 1)
    signal = np.empty((len(codes), 2, count), np.int32)
    predictor = _Predictor(count)
    logarithm = np.zeros((2, count), np.int32)
    scale = np.array([[32], [8]], np.int32) + logarithm
    for step in range(len(codes)):
        signal[step] = (scale * fine[step] >> 15) + predictor.estimate
        predictor.update(scale * coarse[step] >> 15)
        logarithm = np.minimum(np.maximum((logarithm * 127 >> 7) + growth[step], 0), _MOST_LOGARITHM)
        # SCALEL, SCALEH; doubled first, since the largest logarithm shifts by one place the other way.
        scale = 2 * _POWERS[logarithm >> 6 & 31] >> _SHIFT - (logarithm >> 11) << 2
    return np.clip(signal[:, 0], -16384, 16383), np.clip(signal[:, 1], -16384, 16383)


class _Predictor:
    """Two poles and six zeros that follow the signal, in both bands and all lanes at once.

    Attributes:
        estimate: of the next value, [band, lane].
    """

    def __init__(self, count: int) -> None:
        self.estimate = np.zeros((2, count), np.int32)
        self._by_zeros = np.zeros((2, count), np.int32)
        self._zeros = np.zeros((6, 2, count), np.int32)
        self._poles = [np.zeros((2, count), np.int32) for _ in range(2)]
        self._differences = np.zeros((7, 2, count), np.int32)  # newest first
        self._rebuilt = np.zeros((2, count), np.int32)
        self._negative = [np.zeros((2, count), np.bool_) for _ in range(2)]  # signs of differences without the poles

    def update(self, difference: Array) -> None:
        """Takes the newest quantised difference [band, lane] and moves the estimate on."""
        self._differences[1:] = self._differences[:-1].copy()
        self._differences[0] = difference
        rebuilt = _saturate(self.estimate + difference)
        self._move_poles(_saturate(self._by_zeros + difference) < 0)
        # UPZERO: a coefficient leaks, and steps up where its old difference has the new one's sign.
        agrees = (self._differences[1:] < 0) == (difference < 0)
        step = np.where(agrees, 128, -128) * (difference != 0)
        self._zeros = _saturate(step + (self._zeros * 32640 >> 15))
        first, second = self._poles
        by_poles = (first * _saturate(2 * rebuilt) >> 15) + (second * _saturate(2 * self._rebuilt) >> 15)
        products = self._zeros * _saturate(2 * self._differences[:6]) >> 15
        self._by_zeros = _saturate(products.sum(0, dtype=np.int32))
        self._rebuilt = rebuilt
        self.estimate = _saturate(_saturate(by_poles) + self._by_zeros)

    def _move_poles(self, negative: Array) -> None:
        """UPPOL2, UPPOL1 and their limits, from the sign of the newest difference without the poles."""
        first, second = self._poles
        before, earlier = self._negative
        agrees = negative == before
        four = _saturate(4 * first)
        moved = np.minimum(np.where(agrees, -four, four), 32767) >> 7
        second = moved + np.where(negative == earlier, 128, -128) + (second * 32512 >> 15)
        second = np.minimum(np.maximum(second, -12288), 12288)
        first = np.where(agrees, 192, -192) + (first * 32640 >> 15)
        limit = 15360 - second
        self._poles = [np.minimum(np.maximum(first, -limit), limit), second]
        self._negative = [negative, before]


def _synthesis(low: Array, high: Array) -> Array:
    """Joins the bands: int16 [2 * step, lane]."""
    steps, count = low.shape
    sums = np.zeros((steps + 11, count), np.int32)
    differences = np.zeros((steps + 11, count), np.int32)
    sums[11:], differences[11:] = low + high, low - high
    sound = np.zeros((2 * steps, count), np.int32)
    for tap, weight in enumerate(_MIRROR):
        sound[1::2] += weight * sums[tap : tap + steps]
        sound[0::2] += weight * differences[11 - tap : 11 - tap + steps]
    return _saturate(sound >> 11).astype(np.int16)
