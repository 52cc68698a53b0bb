"""Looking at a store's folder from outside: what is in it, and whether it is whole."""
