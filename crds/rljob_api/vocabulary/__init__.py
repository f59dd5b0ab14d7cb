"""What every part spells alike: names, exit codes, problems, quantities, and how a type is written."""
