"""Carries out a model's declared plan with Megatron-Core; imported only where a recipe chooses it."""
