"""The specification's own code, run in other ways: with a row changed, and on a tape."""
