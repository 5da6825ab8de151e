"""The GRU's Pallas kernels (Mosaic GPU); `launch` lays out a call's arrays for them. They know no public function."""
