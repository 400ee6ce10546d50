"""Two LSTM models of speech with real recordings behind them: phones from sound (asr), sound from phones (tts)."""
