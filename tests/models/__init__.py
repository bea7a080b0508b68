"""The rules as TLA+ models: every state of a small world, instead of many runs of a large one."""
