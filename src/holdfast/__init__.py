"""Holdfast: locks that stay correct, and a control plane for work that must not happen twice."""

__version__ = "0.1.0.dev0"
