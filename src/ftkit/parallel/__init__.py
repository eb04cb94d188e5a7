"""Backends: how a net is placed, stepped and gathered on one device or many."""
