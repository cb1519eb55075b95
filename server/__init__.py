"""What the server decides: the plan of a phase, the round loop, evaluation and the ledger."""
