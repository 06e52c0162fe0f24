"""What `headgate bench` measures, and how."""
