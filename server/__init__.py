"""The server's side: the plan of a phase, the round loop, evaluation, the ledger and checkpoints."""
