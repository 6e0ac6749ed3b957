"""Reads logs of others: Criteo, KuaiRand, and Parquet with named columns."""
