"""Devices, the mesh, shardings, and runs in several processes."""
