"""What is called while a job runs: functions and objects of the user's, and loggers."""
