"""Our own functions and their peers', each behind a thin adapter: a file a package, with its rows."""
