"""Grows populations of programming tasks by what models make of earlier ones (Genetic Instruct, 2407.21077)."""
