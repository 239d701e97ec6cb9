"""What is handed to a scheduler so that it starts a job: text, made from settings."""
