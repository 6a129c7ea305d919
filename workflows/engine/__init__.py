"""The engine moves one run: it asks people where it must, makes calls, gives the machine their answers."""
