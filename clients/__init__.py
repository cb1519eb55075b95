"""Where the client halves of algorithms run: engines, and the fleets of actors around them."""
