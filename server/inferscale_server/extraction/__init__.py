"""From conversation to facts: what is worth keeping, who said it, and what it makes outdated."""
