"""Values of requests, checked before anything is done with them."""
