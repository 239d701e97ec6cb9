"""Finding the versions that can be loaded and loading one, every byte verified, under any plan."""
