"""Checks what a model wrote, without asking a model: programs, instructions, calls, final answers and quotations."""
