"""Brings logs of others into feature tables: ids to rows, down-sampling, a ledger, and state that survives a kill."""
