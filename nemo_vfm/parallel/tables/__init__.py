"""Updates embedding tables on one rank or on many."""
