"""Results of parity and bench in the forms that people and CI systems read."""
