"""Where the hosts of a job find each other."""
