"""What is a job."""
