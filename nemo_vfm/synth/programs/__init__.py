"""Makes conversations by asking models: small programs that ask, and a job that runs many of them at once."""
