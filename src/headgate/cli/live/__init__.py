"""The parts of `headgate top`: its snapshots, their rendering, and the terminal."""
