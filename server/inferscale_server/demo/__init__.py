"""The demonstration: sample memories, questions about them, and what comes out in each mode."""
