"""One adapter a framework: how its functions become an `Implementation`. Imported only when a target needs it."""
