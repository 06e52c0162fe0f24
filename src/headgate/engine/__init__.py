"""What moves: claiming, running, and looking after the nodes."""
