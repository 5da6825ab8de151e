"""What a target gets right and wrong, found by experiment: features of calls, the envelope, causes of failures."""
