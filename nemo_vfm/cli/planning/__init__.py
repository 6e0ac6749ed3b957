"""Plans the layouts of a recipe on a number of GPUs, and shows what they cost: a table, JSON or an ingredient."""
