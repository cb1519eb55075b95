"""Client halves on Ray actors: the actors, their tasks, and the fleet that the server sees."""
