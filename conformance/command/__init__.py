"""The work of the command line and of the pytest plugin: targets, one after the other."""
