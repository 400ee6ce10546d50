"""Recurrent operations; the definitions by file: RNN, LSTM, SVDF, the sequences, the quantised LSTM cells."""

from __future__ import annotations

from opset.recurrent_both import BIDIRECTIONAL_SEQUENCE_LSTM
from opset.recurrent_lstm import LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM
from opset.recurrent_quantized import QUANTIZED_16BIT_LSTM
from opset.recurrent_rnn import BIDIRECTIONAL_SEQUENCE_RNN, RNN, UNIDIRECTIONAL_SEQUENCE_RNN
from opset.recurrent_svdf import SVDF
from opset.recurrent_wide import QUANTIZED_LSTM

__all__ = [
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "LSTM",
    "QUANTIZED_16BIT_LSTM",
    "QUANTIZED_LSTM",
    "RNN",
    "SVDF",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
]
