"""Data by number, apart from torch: sources, preparation, and which row comes when."""
