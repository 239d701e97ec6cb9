"""`holdfast demo`."""


def demo() -> None:
    """Show Holdfast at work."""
    print("There is nothing to show yet.")
