"""The parts of `headgate simulate`: arrivals, the engine on virtual time, the result."""
