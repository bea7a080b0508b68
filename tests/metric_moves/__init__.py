"""What moves which metric: each of these is done to a plane by tests/test_metrics.py."""
