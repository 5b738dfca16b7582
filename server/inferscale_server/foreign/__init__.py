"""Other systems' memories, read from their stores and exports."""
