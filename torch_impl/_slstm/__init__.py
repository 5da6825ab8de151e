"""The sLSTM."""
