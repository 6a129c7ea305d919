"""Agents before they run: agent files, what can be named in one, and whether a user's code is pure."""
