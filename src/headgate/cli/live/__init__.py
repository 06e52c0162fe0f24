"""What `headgate top` is made of: what it asks, the picture of it, and the terminal that it is shown on."""
