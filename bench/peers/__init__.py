"""Others that do what the job plane does. Run by a Python of their own, where there is no Holdfast."""
