"""Sweeps put things back where the ordinary road picks them up. None of them ever runs a user's code."""
