"""What Headgate is measured against."""
