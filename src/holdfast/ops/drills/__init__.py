"""Drills: a hypothesis, a fault injected into real processes, what was measured, and a verdict."""
