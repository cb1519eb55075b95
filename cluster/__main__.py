"""`python -m cluster` is `raysim`, also where raysim is not installed but lies in the working folder, as in a job."""

from cluster.cli import main

main()
