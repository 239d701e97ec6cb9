"""The plan as a value: what runs where, who holds what, how long a step takes, and transitions."""
