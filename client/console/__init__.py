"""The console: a web page for the people who decide and the people who look."""
