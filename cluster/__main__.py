"""Runs `raysim` as `python -m cluster`, also where it is not installed but lies in the working folder, as in a job."""

from cluster.cli import main

main()
