"""The clients' side: engines that run the client halves of algorithms, and the fleets of actors around them."""
