"""The same code under a seeded, hostile world: see `docs/explanation/proof.md`."""
