"""`bench accuracy`: does injected memory answer as well as the same memory prefilled? Method: docs/accuracy.md."""
