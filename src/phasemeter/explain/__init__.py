"""Pure functions from a run to numbers with reasons."""
