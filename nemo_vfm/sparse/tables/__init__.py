"""Looks up and updates embedding tables, all tables of a device at once."""
