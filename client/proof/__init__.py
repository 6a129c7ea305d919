"""Verification as people use it: a machine or an agent is found, verified, and the report is drawn."""
