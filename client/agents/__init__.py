"""Agents before they run: agent files, what they may name, and whether a user's code is pure."""
