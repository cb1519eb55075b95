"""Client halves on Ray actors: the actors, the tasks that they are given, and the fleet that the server sees."""
