"""Costs apart from speed: of a call whatever it computes, and of packed sequences by how they are split."""
