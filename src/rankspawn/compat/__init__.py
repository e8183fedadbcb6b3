"""Other projects' names over this package: change the import, keep the program."""
