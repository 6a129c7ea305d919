"""Machines as data and one pure step function. Knows no machine by name, no Temporal, no clock."""
