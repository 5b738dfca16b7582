"""`python -m inferscale_server.cli`."""

from inferscale_server.cli.app import main

main()
