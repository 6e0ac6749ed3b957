"""Asks models many questions: as many at once as the service serves, each answer kept, within a budget."""
