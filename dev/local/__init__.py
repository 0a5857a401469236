"""The clusters that `make` brings up (kind, native, the current context) and a bare control plane for tests.

Only the standard library is used, since this runs before the virtual environment exists.
"""
