"""One adapter per framework, which makes its functions an `Implementation`; imported only when a target needs it."""
