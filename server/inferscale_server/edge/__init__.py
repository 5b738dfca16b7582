"""The HTTP edge: everything between the socket and the memory service. Imports neither vLLM nor torch."""
