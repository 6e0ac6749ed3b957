"""Defines models of recommenders, which give a logit for each label of a sample."""
