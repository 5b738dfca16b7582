"""`python -m inferscale_server.cli`."""

from inferscale_server.cli import main

main()
