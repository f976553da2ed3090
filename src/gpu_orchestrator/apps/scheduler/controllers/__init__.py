"""Loops beside the scheduling cycle: claims, releases, sweeps, reports."""
