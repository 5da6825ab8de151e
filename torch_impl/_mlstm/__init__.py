"""The mLSTM: whole sequences, single steps, and the fwbw interface."""
