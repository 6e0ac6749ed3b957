"""Explains one clip of a curation: what was found, decided and made of it. Import each name from its own file."""
