"""The GRU's Pallas kernels (Mosaic GPU). `launch` brings a call's arrays into their layout."""
