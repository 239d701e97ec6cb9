"""What `import holdfast` offers beyond single parts: training from Python."""
