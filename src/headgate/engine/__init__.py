"""The engine: claims jobs, runs them, and recovers those of dead nodes."""
