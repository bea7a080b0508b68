"""A plane for your own tests, and the faults of production: lost leases, failing publishes, time that passes.

`LocalPlane` (in `plane`) runs in this process; the pytest plugin offers it as the fixture `holdfast_plane`.
"""
