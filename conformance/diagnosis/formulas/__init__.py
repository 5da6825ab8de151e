"""Wrong formulas that implementations often compute instead of the definition."""
