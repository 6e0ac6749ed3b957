"""Writes and reads feature tables: logs of recommenders as Parquet, clustered by session, repeated rows once."""
