"""Results as an HTML page, as pictures, and as README's table."""
