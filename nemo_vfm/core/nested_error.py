"""Defines the error for a fault inside an argument of a constructor, shown at that line of the recipe."""


class PartRefused(ValueError):
    """A constructor refuses something that lies inside one of its arguments; without a recipe a plain ValueError.

    Args:
        message: what is wrong, as for any ValueError.
        address: the keys that lead there from the constructor's arguments, such as `rules`, `static`.
    """

    def __init__(self, message: str, *address: str) -> None:
        super().__init__(message)
        self.address = address
