"""How requests travel: authentication, the protocol without I/O, retries, and the two clients that run it."""
