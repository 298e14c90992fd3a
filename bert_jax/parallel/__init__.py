"""Devices, the mesh, shardings, and runs in several processes.

Nothing here knows a model: models name the axes of their arrays, and `sharding.py` maps the names
to axes of the mesh.
"""
