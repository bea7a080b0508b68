"""What the people on call use: explanations, drills, runbooks."""
