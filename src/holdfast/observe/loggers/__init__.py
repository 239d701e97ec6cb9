"""Where the numbers of a run go besides its own directory: TensorBoard and the like."""
