"""Models as lists of units, made from the engine's parts."""
