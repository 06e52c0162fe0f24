"""What `headgate simulate` is made of: which jobs come when, the engine that runs them on virtual time, the verdict."""
