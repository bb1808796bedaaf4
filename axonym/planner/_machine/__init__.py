"""Devices: their published figures, and those of machines that are not there."""
