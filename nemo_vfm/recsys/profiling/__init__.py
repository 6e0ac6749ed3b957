"""Measures a log of a recommender: sessions, features, groups, and the rows of embedding tables."""
