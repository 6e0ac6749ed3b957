"""Holds one file for each verb: `add_arguments(parser)` and `run(arguments) -> exit status`.

Heavy imports are inside `run`.
"""
