"""Messages between processes, and how they travel."""
