"""The processes of a job: they move messages, time and files, and decide nothing."""
