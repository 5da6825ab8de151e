"""What the command line and the pytest plugin do with targets."""
