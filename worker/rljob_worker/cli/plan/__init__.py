"""`rljob plan`: what would run where, as tables that fit the terminal."""
